//! Logits and stage maps that PyTorch computed in f64 with the weights of `model_official.pth`, and logits of a plain
//! ConvNeXt of timm.

use burn::tensor::{Tensor, TensorData};
use burn_wtconv::WtConvBackend;
use safetensors::{Dtype, SafeTensors};
use wtconvnext::{OfficialScheme, WtConvNext, WtConvNextConfig, load_official, save_official};

use crate::files::{golden_config, test_file};

/// Reads a tensor of `model_official_io.safetensors`.
fn golden(name: &str) -> TensorData {
    read("golden/model_official_io.safetensors", name)
}

fn read(file: &str, name: &str) -> TensorData {
    let file = std::fs::read(test_file(file)).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let tensor = tensors.tensor(name).unwrap();
    let values: Vec<f64> = match tensor.dtype() {
        Dtype::F32 => {
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()).into()).collect()
        }
        Dtype::F64 => {
            tensor.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
        }
        dtype => panic!("unexpected {dtype:?}"),
    };
    TensorData::new(values, tensor.shape().to_vec())
}

/// The largest difference, in units of the largest expected value.
fn relative_error(got: TensorData, expected: &TensorData) -> f64 {
    assert_eq!(got.shape, expected.shape);
    let (mut difference, mut scale) = (0.0f64, 0.0f64);
    for (got, expected) in got.convert::<f64>().iter::<f64>().zip(expected.iter::<f64>()) {
        assert!(got.is_finite(), "expected {expected}, got {got}");
        difference = difference.max((got - expected).abs());
        scale = scale.max(expected.abs());
    }
    difference / scale
}

pub fn check<B: WtConvBackend>(model: &WtConvNext<B>, size: &str, tolerance: f64) {
    let device = Default::default();
    let x = Tensor::<B, 4>::from_data(golden(&format!("x_{size}")), &device);
    let error = relative_error(model.forward(x.clone()).into_data(), &golden(&format!("logits_{size}")));
    println!("logits at {size}: relative error {error:.1e}");
    assert!(
        error < tolerance,
        "logits at {size}: expected a relative error below {tolerance:e}, got {error:e}"
    );

    if size == "64x64" {
        for (index, map) in model.forward_features(x).into_iter().enumerate() {
            let stage = index + 1;
            let error = relative_error(map.into_data(), &golden(&format!("stage{stage}_{size}")));
            println!("stage {stage} at {size}: relative error {error:.1e}");
            assert!(
                error < tolerance,
                "stage {stage}: expected a relative error below {tolerance:e}, got {error:e}"
            );
        }
    }
}

pub fn loaded<B: WtConvBackend>() -> WtConvNext<B> {
    let (model, _) =
        load_official(&golden_config(), test_file("golden/model_official.pth"), &Default::default()).unwrap();
    model
}

pub fn round_trip<B: WtConvBackend>(scheme: OfficialScheme, tolerance: f64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    save_official(&loaded::<B>(), &path, scheme).unwrap();
    let (model, _) = load_official::<B>(&golden_config(), &path, &Default::default()).unwrap();
    check(&model, "64x64", tolerance);
}

pub fn check_convnext<B: WtConvBackend>(tolerance: f64) {
    let device = Default::default();
    let config = WtConvNextConfig::convnext_tiny(5).with_depths([1; 4]).with_dims([4, 6, 8, 10]);
    let (model, _) =
        load_official::<B>(&config, test_file("fixtures/convnext.safetensors"), &device).unwrap();
    let [x, logits] = ["x", "logits"].map(|name| read("fixtures/convnext_io.safetensors", name));
    let error = relative_error(model.forward(Tensor::from_data(x, &device)).into_data(), &logits);
    println!("logits of ConvNeXt: relative error {error:.1e}");
    assert!(error < tolerance, "ConvNeXt: expected a relative error below {tolerance:e}, got {error:e}");
}

/// Makes the golden tests of a backend. The tanh approximation of GELU is off by more than any of the tolerances in use,
/// PyTorch's Haar filters (0.49999998 for 0.5) by less.
macro_rules! golden_tests {
    ($backend:ty, $tolerance:expr) => {
        use wtconvnext::OfficialScheme;
        use $crate::golden_suite::{check, check_convnext, loaded, round_trip};

        #[test]
        fn golden_at_64x64() {
            check(&loaded::<$backend>(), "64x64", $tolerance);
        }

        #[test]
        fn golden_at_71x57() {
            check(&loaded::<$backend>(), "71x57", $tolerance);
        }

        #[test]
        fn golden_at_224x224() {
            check(&loaded::<$backend>(), "224x224", $tolerance);
        }

        #[test]
        fn golden_convnext() {
            check_convnext::<$backend>($tolerance);
        }

        #[test]
        fn golden_after_a_round_trip_as_modules() {
            round_trip::<$backend>(OfficialScheme::Modules, $tolerance);
        }

        #[test]
        fn golden_after_a_round_trip_as_parameters() {
            round_trip::<$backend>(OfficialScheme::Parameters, $tolerance);
        }
    };
}
pub(crate) use golden_tests;
