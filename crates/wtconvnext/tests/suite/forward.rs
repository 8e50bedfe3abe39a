//! Shapes, invalid inputs, and what the model is to Burn.

use burn::module::Module;
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::{DType, Distribution, Tensor};
use wtconvnext::{InputError, WtConvNext, WtConvNextConfig};

use crate::TestBackend;
use crate::files::golden_config;

fn convnext() -> WtConvNextConfig {
    WtConvNextConfig::convnext_tiny(7).with_depths([1, 1, 2, 1]).with_dims([8, 16, 24, 32])
}

fn images(shape: [usize; 4]) -> Tensor<TestBackend, 4> {
    Tensor::random(shape, Distribution::Default, &Default::default())
}

fn model(config: &WtConvNextConfig) -> WtConvNext<TestBackend> {
    config.init(&Default::default())
}

#[test]
fn tiny_models_have_the_published_parameter_counts() {
    assert_eq!(model(&WtConvNextConfig::tiny(1000)).num_params(), 30_383_656);
    assert_eq!(model(&WtConvNextConfig::convnext_tiny(1000)).num_params(), 28_589_128);
}

#[test]
fn sizes_are_rounded_down() {
    for config in [golden_config(), convnext()] {
        let model = model(&config);
        let maps = model.forward_features(images([2, 3, 71, 57]));
        assert_eq!(
            maps.map(|map| map.dims()),
            [[2, 8, 17, 14], [2, 16, 8, 7], [2, 24, 4, 3], [2, 32, 2, 1]],
            "{}",
            config.mixer
        );
        assert_eq!(model.forward(images([2, 3, 32, 32])).dims(), [2, 7]);
    }
}

#[test]
fn the_last_stage_map_is_what_the_head_sees() {
    let model = model(&golden_config());
    let x = images([2, 3, 64, 64]);
    let [.., last] = model.forward_features(x.clone());
    let y = model.head.forward(last.permute([0, 2, 3, 1]));
    assert_eq!(y.into_data(), model.forward(x).into_data());
}

#[test]
fn without_a_head_the_features_are_normalised() {
    let x = images([2, 3, 64, 64]);
    let mut without = model(&golden_config().with_head(false));
    let features = without.forward(x.clone());
    assert_eq!(features.dims(), [2, 32]);
    let (variance, mean) = features.var_mean_bias(1);
    assert!(mean.abs().max().into_scalar() < 1e-5);
    assert!((variance - 1.0).abs().max().into_scalar() < 1e-2);

    // They are what the classifier sees.
    let with = model(&golden_config());
    let logits = with.forward(x.clone()).into_data();
    without.stem = with.stem.clone();
    without.stages = with.stages.clone();
    let fc = with.head.fc.as_ref().unwrap();
    assert_eq!(fc.forward(without.forward(x)).into_data(), logits);
}

#[test]
fn an_empty_batch_has_empty_logits() {
    for config in [golden_config(), convnext()] {
        assert_eq!(model(&config).forward(images([0, 3, 64, 64])).dims(), [0, 7], "{}", config.mixer);
    }
}

#[test]
fn grey_images_need_a_grey_model() {
    assert_eq!(model(&golden_config().with_in_channels(1)).forward(images([1, 1, 32, 32])).dims(), [1, 7]);
}

#[test]
fn invalid_inputs_are_refused() {
    let model = model(&golden_config());
    let cases = [
        (images([2, 1, 64, 64]), "expected images of 3 channels, got 1"),
        (images([2, 3, 31, 64]), "expected images of at least 32x32 pixels, got 31x64"),
        (images([2, 3, 64, 5]), "expected images of at least 32x32 pixels, got 64x5"),
        (images([2, 3, 64, 64]).cast(DType::F64), "expected images of dtype F32, got F64"),
    ];
    for (x, expected) in cases {
        let error: InputError = model.check_input(&x).unwrap_err();
        assert_eq!(error.to_string(), expected);
    }
    assert_eq!(model.check_input(&images([2, 3, 32, 32])), Ok(()));
}

#[test]
#[should_panic = "WtConvNext: expected images of 3 channels, got 1"]
fn forward_panics_with_the_error() {
    model(&golden_config()).forward(images([2, 1, 64, 64]));
}

#[test]
#[should_panic = "WtConvNext: expected images of at least 32x32 pixels, got 16x64"]
fn forward_features_panics_with_the_error() {
    model(&golden_config()).forward_features(images([2, 3, 16, 64]));
}

#[test]
#[should_panic = "invalid WtConvNextConfig: `dims[1]` must be at least 1, got 0"]
fn init_panics_with_the_error() {
    model(&golden_config().with_dims([8, 0, 24, 32]));
}

#[test]
fn a_record_restores_the_model() {
    for config in [golden_config(), convnext()] {
        let device = Default::default();
        let saved = model(&config);
        let x = images([1, 3, 32, 32]);
        let expected = saved.forward(x.clone()).into_data();

        let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
        let bytes = recorder.record(saved.into_record(), ()).unwrap();
        let restored = model(&config).load_record(recorder.load(bytes, &device).unwrap());
        assert_eq!(restored.forward(x).into_data(), expected);
    }
}

#[test]
fn weights_start_with_a_standard_deviation_of_0_02_and_biases_at_0() {
    let model = model(&convnext());
    let std = |values: Tensor<TestBackend, 1>| values.var_bias(0).sqrt().into_scalar();
    let fc1 = &model.stages[3].blocks[0].mlp.fc1;
    let conv = &model.stages[3].downsample.as_ref().unwrap().conv;
    for (weight, bias) in [
        (fc1.weight.val().flatten(0, 1), fc1.bias.as_ref().unwrap()),
        (conv.weight.val().flatten(0, 3), conv.bias.as_ref().unwrap()),
    ] {
        let std = std(weight);
        assert!((std - 0.02).abs() < 0.002, "expected 0.02, got {std}");
        assert_eq!(bias.val().abs().max().into_scalar(), 0.0);
    }
    assert_eq!(model.stages[0].blocks[0].gamma.val().into_data().to_vec::<f32>().unwrap(), [1e-6; 8]);
}
