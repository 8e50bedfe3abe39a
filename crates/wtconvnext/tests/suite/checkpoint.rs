//! Reading and writing files of the PyTorch code. `fixtures/generate.py` says what the fixtures hold.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::tensor::{DType, Distribution, Tensor, TensorData};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors, serialize_to_file};
use tempfile::TempDir;
use wtconvnext::official::FileFormat;
use wtconvnext::{
    ImportError, ImportReport, Mixer, OfficialScheme, WtConvNext, WtConvNextConfig, load_official,
    save_official,
};

use crate::TestBackend;
use crate::files::{golden_config, test_file};

type Tensors = BTreeMap<String, TensorData>;

fn fixture_config() -> WtConvNextConfig {
    WtConvNextConfig::new(3)
        .with_depths([1; 4])
        .with_dims([2, 3, 4, 5])
        .with_kernel_sizes([3; 4])
        .with_levels([1; 4])
}

fn load(
    config: &WtConvNextConfig,
    path: impl AsRef<Path>,
) -> Result<(WtConvNext<TestBackend>, ImportReport), ImportError> {
    load_official(config, path, &Default::default())
}

fn read(path: &Path) -> Tensors {
    let file = fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&file).unwrap();
    let data = |tensor: TensorView| {
        let dtype = match tensor.dtype() {
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            dtype => panic!("unexpected {dtype:?}"),
        };
        TensorData::from_bytes_vec(tensor.data().to_vec(), tensor.shape().to_vec(), dtype)
    };
    tensors.iter().map(|(name, tensor)| (name.to_owned(), data(tensor))).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, tensor)| {
        let dtype = match tensor.dtype {
            DType::F64 => Dtype::F64,
            DType::F32 => Dtype::F32,
            DType::F16 => Dtype::F16,
            DType::BF16 => Dtype::BF16,
            DType::I32 => Dtype::I32,
            dtype => panic!("unexpected {dtype:?}"),
        };
        (name, TensorView::new(dtype, tensor.shape.to_vec(), tensor.as_bytes()).unwrap())
    });
    serialize_to_file(views, None, path).unwrap();
}

/// The tensors of a model under their official names.
fn official(model: &WtConvNext<TestBackend>, scheme: OfficialScheme) -> Tensors {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.safetensors");
    save_official(model, &path, scheme).unwrap();
    read(&path)
}

/// Loads tensors that were written to a safetensors file.
fn load_tensors(
    config: &WtConvNextConfig,
    tensors: &Tensors,
) -> Result<(WtConvNext<TestBackend>, ImportReport), ImportError> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("model.safetensors");
    write(&path, tensors);
    load(config, path)
}

/// The official state dict of a model with the fixtures' configuration.
fn fixture_tensors() -> Tensors {
    let (model, _) = load(&fixture_config(), test_file("fixtures/channels_last.pth")).unwrap();
    official(&model, OfficialScheme::Modules)
}

fn assert_is_fixture(model: &WtConvNext<TestBackend>, scheme: OfficialScheme, shift: usize) {
    for (name, tensor) in official(model, scheme) {
        if name.ends_with("wt_filter") {
            continue;
        }
        let start: usize = name.bytes().map(usize::from).sum();
        let expected = |i: usize| ((i + start) % 97 + shift) as f32 / 64.0;
        for (i, got) in tensor.iter::<f32>().enumerate() {
            assert_eq!(got, expected(i), "{name}, element {i}");
        }
    }
}

mod what_loads {
    use super::*;

    #[test]
    fn a_plain_state_dict() {
        let (_, report) = load(&golden_config(), test_file("golden/model_official.pth")).unwrap();
        assert_eq!(report.format, FileFormat::PyTorch);
        assert_eq!(report.nested_under, None);
        assert_eq!(report.scheme, Some(OfficialScheme::Modules));
        assert_eq!(report.tensors, 104);
        assert_eq!(report.skipped.len(), 10);
        assert_eq!(report.outside, 0);
        assert_eq!(report.dtypes, [DType::F32]);
        assert_eq!(
            report.to_string(),
            format!(
                "104 tensors ({} parameters) of a PyTorch file, stored as [F32], 10 skipped",
                report.parameters
            )
        );
    }

    #[test]
    fn the_moving_average_of_a_training_checkpoint() {
        let (model, report) = load(&fixture_config(), test_file("fixtures/training.pth")).unwrap();
        assert_eq!(report.nested_under, Some("state_dict_ema"));
        // The other weights with their fixed filters, and two tensors of the optimizer.
        assert_eq!(report.outside, report.tensors + report.skipped.len() + 2);
        assert_is_fixture(&model, OfficialScheme::Modules, 97);
    }

    #[test]
    fn tensors_that_are_not_contiguous() {
        let (model, _) = load(&fixture_config(), test_file("fixtures/channels_last.pth")).unwrap();
        assert_is_fixture(&model, OfficialScheme::Modules, 0);
    }

    #[test]
    fn the_parameters_scheme_in_half_precision() {
        let (model, report) = load(&fixture_config(), test_file("fixtures/parameters_f16.pth")).unwrap();
        assert_eq!(report.scheme, Some(OfficialScheme::Parameters));
        assert_eq!(report.dtypes, [DType::F16]);
        assert_is_fixture(&model, OfficialScheme::Parameters, 0);
    }

    #[test]
    fn every_float_type() {
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let tensors: Tensors =
                fixture_tensors().into_iter().map(|(n, t)| (n, t.convert_dtype(dtype))).collect();
            let (model, report) = load_tensors(&fixture_config(), &tensors).unwrap();
            assert_eq!(report.format, FileFormat::Safetensors);
            assert_eq!(report.dtypes, [dtype]);
            assert_is_fixture(&model, OfficialScheme::Modules, 0);
        }
    }

    #[test]
    fn every_nest_in_order_of_preference() {
        let nests = ["state_dict_ema", "state_dict", "model"];
        for first in 0..nests.len() {
            let tensors: Tensors = nests[first..]
                .iter()
                .enumerate()
                .flat_map(|(rank, nest)| {
                    fixture_tensors().into_iter().filter_map(move |(name, tensor)| {
                        // The nests that must not be taken lack a tensor.
                        if rank > 0 && name == "stem.0.weight" {
                            return None;
                        }
                        Some((format!("{nest}.{name}"), tensor))
                    })
                })
                .collect();
            let (model, report) = load_tensors(&fixture_config(), &tensors).unwrap();
            assert_eq!(report.nested_under, Some(nests[first]));
            assert_is_fixture(&model, OfficialScheme::Modules, 0);
        }
    }

    #[test]
    fn a_model_without_a_head_skips_the_classifier() {
        let (model, report) = load_tensors(&fixture_config().with_head(false), &fixture_tensors()).unwrap();
        assert!(model.head.fc.is_none());
        assert!(report.skipped.contains(&"head.fc.weight".to_owned()), "{:?}", report.skipped);
        assert!(report.skipped.contains(&"head.fc.bias".to_owned()), "{:?}", report.skipped);
    }

    #[test]
    fn a_plain_convnext() {
        let config = WtConvNextConfig::convnext_tiny(3).with_depths([1; 4]).with_dims([2, 3, 4, 5]);
        let saved: WtConvNext<TestBackend> = config.init(&Default::default());
        let tensors = official(&saved, OfficialScheme::Modules);
        assert_eq!(tensors["stages.1.blocks.0.conv_dw.weight"].shape.to_vec(), [3, 1, 7, 7]);
        let (loaded, report) = load_tensors(&config, &tensors).unwrap();
        assert_eq!(report.scheme, None);
        assert_eq!(official(&loaded, OfficialScheme::Modules), tensors);
    }
}

mod what_is_saved {
    use super::*;

    #[test]
    fn has_the_names_and_shapes_of_the_official_file() {
        let (model, report) = load(&golden_config(), test_file("golden/model_official.pth")).unwrap();
        let tensors = official(&model, OfficialScheme::Modules);
        // With the fixed filters, which PyTorch's `load_state_dict` wants.
        assert_eq!(tensors.len(), report.tensors + report.skipped.len());
        assert!(report.skipped.iter().all(|name| tensors.contains_key(name)));
        let shape = |name: &str| tensors[name].shape.to_vec();
        assert_eq!(shape("stages.2.blocks.1.mlp.fc1.weight"), [96, 24]);
        assert_eq!(shape("stages.0.blocks.0.conv_dw.wavelet_convs.4.weight"), [32, 1, 5, 5]);
        assert_eq!(shape("stages.0.blocks.0.conv_dw.iwt_filter"), [32, 1, 2, 2]);
    }

    #[test]
    fn loads_to_the_same_bits() {
        let (saved, _) = load(&golden_config(), test_file("golden/model_official.pth")).unwrap();
        for scheme in [OfficialScheme::Modules, OfficialScheme::Parameters] {
            let tensors = official(&saved, scheme);
            let (loaded, report) = load_tensors(&golden_config(), &tensors).unwrap();
            assert_eq!(report.scheme, Some(scheme));
            assert_eq!(official(&loaded, scheme), tensors);
        }
    }

    #[test]
    fn is_the_model_even_if_it_was_never_used() {
        let model: WtConvNext<TestBackend> = golden_config().init(&Default::default());
        let tensors = official(&model, OfficialScheme::Modules);
        let weight = model.head.fc.as_ref().unwrap().weight.val().transpose().into_data();
        assert_eq!(tensors["head.fc.weight"], weight);
    }

    #[test]
    fn needs_a_folder() {
        let (model, _) = load(&golden_config(), test_file("golden/model_official.pth")).unwrap();
        let error =
            save_official(&model, "no/such/folder/model.safetensors", OfficialScheme::Modules).unwrap_err();
        assert!(error.to_string().starts_with("cannot write no/such/folder/model.safetensors: "), "{error}");
    }
}

mod what_does_not_load {
    use super::*;

    /// Loads tensors after a change, and returns the message after the file's name.
    fn mismatch(config: &WtConvNextConfig, change: impl FnOnce(&mut Tensors)) -> String {
        let mut tensors = fixture_tensors();
        change(&mut tensors);
        let error = load_tensors(config, &tensors).unwrap_err();
        assert!(matches!(error, ImportError::Mismatch { .. }), "{error}");
        let message = error.to_string();
        message.split_once(" does not fit the model: ").expect("a mismatch").1.to_owned()
    }

    #[test]
    fn missing_tensors() {
        let message = mismatch(&fixture_config(), |tensors| {
            tensors.remove("stem.1.bias");
            tensors.remove("stages.2.blocks.0.conv_dw.wavelet_scale.0.weight");
        });
        assert_eq!(
            message,
            "2 of 68 tensors missing: stages.2.blocks.0.conv_dw.wavelet_scale.0.weight, stem.1.bias"
        );
    }

    #[test]
    fn unused_tensors() {
        let message = mismatch(&fixture_config(), |tensors| {
            let copy = tensors["stem.1.bias"].clone();
            tensors.insert("stages.0.blocks.1.gamma".to_owned(), copy);
        });
        assert_eq!(message, "1 tensors unused: stages.0.blocks.1.gamma");
    }

    #[test]
    fn tensors_of_another_shape() {
        let message = mismatch(&WtConvNextConfig { num_classes: 1000, ..fixture_config() }, |_| {});
        assert_eq!(
            message,
            "2 tensors of another shape: head.fc.bias (expected [1000], got [3]), head.fc.weight (expected [1000, 5], \
             got [3, 5])"
        );
    }

    #[test]
    fn all_kinds_at_once() {
        let message = mismatch(&WtConvNextConfig { num_classes: 2, ..fixture_config() }, |tensors| {
            let bias = tensors.remove("stem.0.bias").unwrap();
            tensors.insert("stem.0.beta".to_owned(), bias);
        });
        assert_eq!(
            message,
            "1 of 68 tensors missing: stem.0.bias; 1 tensors unused: stem.0.beta; 2 tensors of another shape: \
             head.fc.bias (expected [2], got [3]), head.fc.weight (expected [2, 5], got [3, 5])"
        );
    }

    #[test]
    fn another_architecture() {
        let convnext = WtConvNextConfig::convnext_tiny(3)
            .with_depths([1; 4])
            .with_dims([2, 3, 4, 5])
            .with_kernel_sizes([3; 4]);
        let message = mismatch(&convnext, |_| {});
        assert!(
            message.starts_with("8 of 56 tensors missing: stages.0.blocks.0.conv_dw.bias, "),
            "{message}"
        );
        assert!(
            message.contains("; 28 tensors unused: stages.0.blocks.0.conv_dw.base_conv.bias, "),
            "{message}"
        );
        assert!(message.ends_with(" and 22 more"), "{message}");
    }

    #[test]
    fn both_schemes_at_once() {
        let message = mismatch(&fixture_config(), |tensors| {
            let scale = tensors.remove("stages.3.blocks.0.conv_dw.base_scale.weight").unwrap();
            tensors.insert("stages.3.blocks.0.conv_dw.base_scale".to_owned(), scale);
        });
        assert_eq!(
            message,
            "1 of 68 tensors missing: stages.3.blocks.0.conv_dw.base_scale.weight; 1 tensors unused: \
             stages.3.blocks.0.conv_dw.base_scale"
        );
    }

    #[test]
    fn integers() {
        let mut tensors = fixture_tensors();
        let gamma = tensors["stem.1.weight"].clone().convert_dtype(DType::I32);
        tensors.insert("stem.1.weight".to_owned(), gamma);
        let error = load_tensors(&fixture_config(), &tensors).unwrap_err();
        assert_eq!(error.to_string(), "`stem.1.weight` has dtype I32, expected a float");
    }

    #[test]
    fn another_wavelet() {
        let name = "stages.1.blocks.0.conv_dw.wt_filter";
        let haar = fixture_tensors()[name].to_vec::<f32>().unwrap();
        let longer: Vec<f32> = haar.iter().copied().chain([0.0; 144]).collect();
        let other: Vec<f32> = haar.iter().map(|value| value * 1.001).collect();
        for filter in [TensorData::new(longer, [12, 1, 4, 4]), TensorData::new(other, [12, 1, 2, 2])] {
            let mut tensors = fixture_tensors();
            tensors.insert(name.to_owned(), filter);
            let error = load_tensors(&fixture_config(), &tensors).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!(
                    "`{name}` is not the Haar filter (PyTorch's `wt_type='db1'`), the only wavelet there is here"
                )
            );
        }
    }

    #[test]
    fn an_invalid_configuration() {
        let error = load(&golden_config().with_in_channels(0), "no/such.pth").unwrap_err();
        assert_eq!(error.to_string(), "invalid WtConvNextConfig: `in_channels` must be at least 1, got 0");
    }

    #[test]
    fn a_missing_file() {
        for name in ["no/such.pth", "no/such.safetensors"] {
            let error = load(&golden_config(), name).unwrap_err();
            assert!(matches!(error, ImportError::Io { .. }), "{error}");
            assert!(error.to_string().starts_with(&format!("cannot read {name}: ")), "{error}");
        }
    }

    /// The error of a file with these bytes.
    fn malformed(bytes: &[u8]) -> (FileFormat, String) {
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("model");
        fs::write(&file, bytes).unwrap();
        match load(&fixture_config(), &file).unwrap_err() {
            ImportError::Malformed { path, format, reason } => {
                assert_eq!(path, file);
                (format, reason)
            }
            error => panic!("{error}"),
        }
    }

    #[test]
    fn a_truncated_pytorch_file() {
        let bytes = fs::read(test_file("fixtures/channels_last.pth")).unwrap();
        for length in [0, 5, 100, bytes.len() / 2, bytes.len() - 1] {
            let (format, reason) = malformed(&bytes[..length]);
            assert_eq!(format, FileFormat::PyTorch);
            assert!(
                reason.contains("torch.save writes zip archives since PyTorch 1.6"),
                "{length}: {reason}"
            );
        }
    }

    #[test]
    fn a_pytorch_file_from_before_1_6() {
        let (_, reason) = malformed(&fs::read(test_file("fixtures/before_1_6.pth")).unwrap());
        assert!(reason.contains("torch.save writes zip archives since PyTorch 1.6"), "{reason}");
    }

    #[test]
    fn a_flipped_bit_in_a_storage() {
        let mut bytes = fs::read(test_file("fixtures/channels_last.pth")).unwrap();
        // Storages are aligned to 64 bytes, after a header that ends in their name and padding.
        let name = b"channels_last/data/0";
        let header = bytes.windows(name.len()).position(|window| window == name).unwrap();
        let start = (header + name.len()).next_multiple_of(64);
        bytes[start] ^= 1;
        let (_, reason) = malformed(&bytes);
        assert!(reason.contains("channels_last/data/0: "), "{reason}");
        assert!(reason.contains("checksum"), "{reason}");
    }

    #[test]
    fn a_truncated_safetensors_file() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("model.safetensors");
        write(&path, &fixture_tensors());
        let bytes = fs::read(path).unwrap();
        for length in [9, 100, bytes.len() / 2, bytes.len() - 1] {
            assert_eq!(malformed(&bytes[..length]).0, FileFormat::Safetensors, "{length}");
        }
    }
}

/// The two depthwise mixing layers are one network: weights saved by the one load into the other.
#[test]
fn burns_convolution_and_ours_are_interchangeable() {
    let ours = WtConvNextConfig::convnext_tiny(7).with_depths([1, 1, 2, 1]).with_dims([8, 16, 24, 32]);
    let burns = ours.clone().with_mixer(Mixer::Conv2d);
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("convnext.safetensors");
    let x = Tensor::random([2, 3, 37, 64], Distribution::Default, &Default::default());
    for (from, to) in [(&ours, &burns), (&burns, &ours)] {
        let model: WtConvNext<TestBackend> = from.init(&Default::default());
        save_official(&model, &path, OfficialScheme::Modules).unwrap();
        let (loaded, _) = load(to, &path).unwrap();
        let expected = model.forward(x.clone()).into_data();
        loaded.forward(x.clone()).into_data().assert_approx_eq::<f32>(&expected, Default::default());
    }
}
