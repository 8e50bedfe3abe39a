//! The layer as a Burn module: configuration, initialisation, records, official names.
#![cfg(feature = "flex")]

use std::collections::BTreeMap;

use burn::backend::{Autodiff, Flex};
use burn::module::{Module, Param};
use burn::nn::PaddingConfig2d;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::record::{BinBytesRecorder, FullPrecisionSettings, Recorder};
use burn::tensor::{Distribution, Tensor, TensorData};
use burn_wtconv::official::{OfficialError, OfficialScheme};
use burn_wtconv::{DepthwiseConv2d, DepthwiseConv2dConfig, Route, WtConv2d, WtConv2dConfig, WtConvError};

type B = Flex;

fn layer(config: WtConv2dConfig) -> WtConv2d<B> {
    config.init(&Default::default())
}

fn image(shape: [usize; 4]) -> Tensor<B, 4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Default::default())
}

#[test]
fn defaults_are_those_of_the_reference_layer() {
    let config = WtConv2dConfig::new(8);
    assert_eq!((config.kernel_size, config.levels, config.stride, config.bias), (5, 1, 1, true));

    let layer = layer(config.with_levels(2));
    assert_eq!((layer.channels(), layer.kernel_size(), layer.levels()), (8, 5, 2));
    assert_eq!(layer.num_params(), 8 * 9 * 25 + 8 * 9 + 8);
    layer.filters.to_data().assert_within_range(-0.2f32..0.2);
    layer.bias.expect("a bias").to_data().assert_within_range(-0.2f32..0.2);
    let scales: Vec<f32> = layer.scales.to_data().iter().collect();
    assert!(scales.chunks(9).all(|scales| scales[0] == 1.0 && scales[1..].iter().all(|s| *s == 0.1)));
}

#[test]
fn sizes_of_zero_are_refused() {
    for (config, what) in [
        (WtConv2dConfig::new(0), "channels"),
        (WtConv2dConfig::new(4).with_kernel_size(0), "kernel_size"),
        (WtConv2dConfig::new(4).with_stride(0), "stride"),
    ] {
        let error = config.try_init::<B>(&Default::default()).expect_err("a refusal");
        assert_eq!(error, WtConvError::Zero { what });
        assert_eq!(error.to_string(), format!("expected {what} >= 1, got 0"));
    }
}

#[test]
#[should_panic = "expected an input of 32 channels, got 3"]
fn forward_panics_in_words() {
    layer(WtConv2dConfig::new(32)).forward(image([1, 3, 8, 8]));
}

#[test]
fn display_names_the_sizes() {
    assert_eq!(
        format!("{}", layer(WtConv2dConfig::new(4).with_levels(3).with_bias(false))),
        "WtConv2d {channels: 4, kernel_size: 5, levels: 3, stride: 1, bias: false, params: 1352}"
    );
}

#[test]
fn receptive_field_doubles_with_each_level() {
    for (levels, expected) in [(0, 5), (1, 10), (3, 40), (5, 160), (100, usize::MAX)] {
        let config = WtConv2dConfig::new(1).with_levels(levels);
        assert_eq!(layer(config).receptive_field(), expected);
    }
}

/// The gradient of one output pixel reaches as far as `receptive_field` says, and no further.
#[test]
fn receptive_field_is_where_the_gradient_is() {
    type A = Autodiff<B>;
    let device = Default::default();
    let layer = WtConv2dConfig::new(1).with_kernel_size(3).with_levels(2).init::<A>(&device);
    let x = Tensor::<A, 4>::ones([1, 1, 64, 64], &device).require_grad();
    // Row and column 32 begin a block of 4: the block and one block on each side is the field.
    let y = layer.forward(x.clone()).slice([0..1, 0..1, 32..33, 32..33]);
    let gradient = x.grad(&y.sum().backward()).expect("a gradient");
    let rows: Vec<f32> = gradient.abs().sum_dim(3).into_data().iter().collect();
    let field: Vec<usize> = (0..64).filter(|row| rows[*row] > 0.0).collect();
    assert_eq!((field[0], field.len()), (28, layer.receptive_field()));
}

#[test]
fn accessors_slice_the_packed_filters() {
    let layer = layer(WtConv2dConfig::new(2).with_kernel_size(3).with_levels(2));
    let filters = layer.filters.val();
    assert_eq!(layer.base_filter().dims(), [2, 3, 3]);
    let level = layer.level_filters(2);
    assert_eq!(level.dims(), [2, 4, 3, 3]);
    assert_eq!(level.into_data(), filters.slice([0..2, 5..9, 0..3, 0..3]).into_data());
    assert_eq!(layer.level_scales(1).dims(), [2, 4]);
}

#[test]
#[should_panic = "expected a level in 1..=2, got 3"]
fn a_level_too_deep_panics_in_words() {
    layer(WtConv2dConfig::new(2).with_levels(2)).level_filters(3);
}

#[test]
fn a_record_restores_the_layer() {
    let device = Default::default();
    let config = WtConv2dConfig::new(3).with_levels(2);
    let (saved, other) = (layer(config.clone()), layer(config));
    let x = image([1, 3, 9, 6]);
    let expected = saved.forward(x.clone()).into_data();
    let recorder = BinBytesRecorder::<FullPrecisionSettings>::default();
    let bytes = recorder.record(saved.clone().into_record(), ()).expect("a record");
    let restored = other.load_record(recorder.load(bytes, &device).expect("a record"));
    assert_eq!(restored.forward(x).into_data(), expected);
}

#[test]
fn flex_goes_through_tensor_ops_and_says_why() {
    let route = layer(WtConv2dConfig::new(2)).route(&image([1, 2, 4, 4]));
    assert_eq!(route, Route::TensorOps { reason: "the backend flex has no fused kernels".to_owned() });
}

#[test]
fn an_optimizer_step_lowers_the_loss() {
    type A = Autodiff<B>;
    let device = Default::default();
    let mut layer = WtConv2dConfig::new(2).with_levels(2).init::<A>(&device);
    let x = Tensor::<A, 4>::random([4, 2, 8, 8], Distribution::Normal(0.0, 1.0), &device);
    let target = x.clone().flip([2]);
    let mut optimizer = SgdConfig::new().init();
    let mut losses = Vec::new();
    for _ in 0..5 {
        let loss = (layer.forward(x.clone()) - target.clone()).square().mean();
        losses.push(loss.clone().into_scalar());
        let gradients = GradientsParams::from_grads(loss.backward(), &layer);
        layer = optimizer.step(0.1, layer, gradients);
    }
    assert!(losses.windows(2).all(|pair| pair[1] < pair[0]), "{losses:?}");
}

fn depthwise(channels: usize, kernel_size: usize, stride: usize, padding: PaddingConfig2d) -> Conv2d<B> {
    Conv2dConfig::new([channels, channels], [kernel_size, kernel_size])
        .with_groups(channels)
        .with_stride([stride, stride])
        .with_padding(padding)
        .init(&Default::default())
}

#[test]
fn a_depthwise_conv2d_is_taken_over_unchanged() {
    let x = image([2, 3, 11, 8]);
    for conv in [
        depthwise(3, 7, 1, PaddingConfig2d::Same),
        depthwise(3, 4, 1, PaddingConfig2d::Same),
        depthwise(3, 5, 2, PaddingConfig2d::Explicit(2, 2, 2, 2)),
        depthwise(3, 1, 3, PaddingConfig2d::Valid),
    ] {
        let expected = conv.forward(x.clone());
        let layer = WtConv2d::from_conv2d(conv, 2).expect("a depthwise convolution");
        let difference = (layer.forward(x.clone()) - expected).abs().max().into_scalar();
        assert!(difference < 1e-6, "{layer}: {difference}");
    }
}

/// A taken-over layer can learn: the wavelet scales are 0 and have a gradient.
#[test]
fn a_taken_over_conv2d_can_be_fine_tuned() {
    type A = Autodiff<B>;
    let device = Default::default();
    let conv = Conv2dConfig::new([2, 2], [3, 3])
        .with_groups(2)
        .with_padding(PaddingConfig2d::Same)
        .init::<A>(&device);
    let layer = WtConv2d::from_conv2d(conv, 1).expect("a depthwise convolution");
    let x = Tensor::<A, 4>::random([1, 2, 8, 8], Distribution::Normal(0.0, 1.0), &device);
    let gradients = layer.forward(x).square().sum().backward();
    let scales = layer.scales.grad(&gradients).expect("a gradient");
    assert!(scales.abs().min().into_scalar() > 0.0);
}

#[test]
fn other_convolutions_are_refused_in_words() {
    let device = Default::default();
    let conv = |channels, kernel, groups| {
        Conv2dConfig::new(channels, kernel).with_groups(groups).with_padding(PaddingConfig2d::Same)
    };
    for (config, message) in [
        (
            conv([4, 8], [3, 3], 4),
            "expected a depthwise Conv2d with as many groups as input and output channels, got 4 channels in, 8 out, \
             4 groups",
        ),
        (conv([4, 4], [3, 5], 4), "expected a depthwise Conv2d with a square filter, got 3x5"),
        (
            conv([4, 4], [3, 3], 4).with_dilation([2, 2]),
            "expected a depthwise Conv2d with dilation [1, 1], got [2, 2]",
        ),
        (
            conv([4, 4], [3, 3], 4).with_stride([1, 2]),
            "expected a depthwise Conv2d with one stride for both axes, got [1, 2]",
        ),
        (
            conv([4, 4], [3, 3], 4).with_padding(PaddingConfig2d::Valid),
            "expected a depthwise Conv2d with padding of (kernel_size - 1) / 2 before and kernel_size / 2 after, got \
             Valid at kernel size 3 and stride 1",
        ),
    ] {
        let error = WtConv2d::from_conv2d(config.init::<B>(&device), 1).expect_err("a refusal");
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn official_names_round_trip_in_both_schemes() {
    let config = WtConv2dConfig::new(3).with_kernel_size(3).with_levels(2);
    let saved = layer(config.clone());
    for (scheme, name) in
        [(OfficialScheme::Modules, "wavelet_convs.1.weight"), (OfficialScheme::Parameters, "wt_weights.1")]
    {
        let mut tensors = saved.to_official(scheme);
        assert_eq!(tensors.len(), 7);
        assert_eq!(tensors[name].shape.to_vec(), [12, 1, 3, 3]);
        // Channel 4c + s of a level is subband s of channel c.
        let filter: Vec<f32> = tensors[name].iter::<f32>().skip((4 * 2 + 1) * 9).take(9).collect();
        let packed = saved.filters.val().slice([2..3, 6..7, 0..3, 0..3]).into_data();
        assert_eq!(filter, packed.iter::<f32>().collect::<Vec<_>>());

        tensors.insert("wt_filter".to_owned(), TensorData::from([0.5f32]));
        tensors.insert("iwt_filter".to_owned(), TensorData::from([0.5f32]));
        let loaded = WtConv2d::<B>::from_official(&config, &tensors, &Default::default()).expect("a layer");
        assert_eq!(loaded.filters.to_data(), saved.filters.to_data());
        assert_eq!(loaded.scales.to_data(), saved.scales.to_data());
        assert_eq!(bias(&loaded), bias(&saved));
    }
}

fn bias(layer: &WtConv2d<B>) -> TensorData {
    layer.bias.as_ref().map(Param::val).expect("a bias").into_data()
}

#[test]
fn official_names_that_do_not_fit_are_listed() {
    let config = WtConv2dConfig::new(3).with_kernel_size(3);
    let complete = layer(config.clone()).to_official(OfficialScheme::Modules);
    let load = |tensors: &BTreeMap<String, TensorData>| {
        WtConv2d::<B>::from_official(&config, tensors, &Default::default()).expect_err("a refusal")
    };

    let mut tensors = complete.clone();
    tensors.remove("base_scale.weight");
    tensors.remove("wavelet_scale.0.weight");
    let names = vec!["base_scale.weight".to_owned(), "wavelet_scale.0.weight".to_owned()];
    assert_eq!(load(&tensors), OfficialError::Missing { names, expected: 5 });

    let mut tensors = complete.clone();
    tensors.insert("wavelet_convs.1.weight".to_owned(), TensorData::from([1.0f32]));
    let error = load(&tensors);
    assert_eq!(error.to_string(), "1 of 6 tensors belong to no parameter: wavelet_convs.1.weight");

    let mut tensors = complete;
    tensors.insert("base_conv.bias".to_owned(), TensorData::from([1.0f32, 2.0]));
    let error = load(&tensors);
    assert_eq!(error.to_string(), "expected base_conv.bias of shape [3], got [2]");
}

#[test]
fn official_values_are_cast_to_the_backends_float() {
    let config = WtConv2dConfig::new(2).with_levels(0).with_bias(false);
    let saved = layer(config.clone());
    let tensors = saved.to_official(OfficialScheme::Parameters);
    let tensors = tensors.into_iter().map(|(name, data)| (name, data.convert::<f64>())).collect();
    let loaded = WtConv2d::<B>::from_official(&config, &tensors, &Default::default()).expect("a layer");
    assert_eq!(loaded.filters.to_data(), saved.filters.to_data());
}

#[test]
fn a_depthwise_layer_takes_over_a_conv2d() {
    for (kernel_size, stride) in [(7, 1), (3, 2)] {
        let half = kernel_size / 2;
        let conv = depthwise(6, kernel_size, stride, PaddingConfig2d::Explicit(half, half, half, half));
        let x = image([2, 6, 13, 10]);
        let expected = conv.forward(x.clone()).into_data();
        let layer = DepthwiseConv2d::from_conv2d(conv).expect("a depthwise convolution");
        assert_eq!((layer.channels(), layer.kernel_size(), layer.stride), (6, kernel_size, stride));
        layer.forward(x).into_data().assert_approx_eq::<f32>(&expected, Default::default());
    }
    let conv = depthwise(6, 4, 1, PaddingConfig2d::Valid);
    assert!(matches!(DepthwiseConv2d::from_conv2d(conv), Err(WtConvError::NotDepthwise { .. })));
}

#[test]
fn a_depthwise_layer_is_a_module() {
    let config = DepthwiseConv2dConfig::new(4, 7).with_bias(false);
    let layer = config.init::<B>(&Default::default());
    assert_eq!(
        format!("{layer}"),
        "DepthwiseConv2d {channels: 4, kernel_size: 7, stride: 1, bias: false, params: 196}"
    );
    layer.weight.to_data().assert_within_range(-1.0f32 / 7.0..1.0 / 7.0);
    let error = DepthwiseConv2dConfig::new(4, 0).try_init::<B>(&Default::default()).expect_err("a refusal");
    assert_eq!(error, WtConvError::Zero { what: "kernel_size" });
}
