//! What is measured: shapes, levels, dtypes, passes, layouts and routes, and the presets that name sets of them.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail, ensure};
use burn::tensor::DType;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Batch, channels, height and width, written `BxCxHxW`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct Shape(pub(crate) [usize; 4]);

impl Shape {
    /// 256 GiB in f32: more than any device holds, and no size computed from it overflows.
    const MOST_ELEMENTS: usize = 1 << 36;

    /// A shape with numbers from the command line.
    ///
    /// # Errors
    ///
    /// If it has no elements or too many.
    pub(crate) fn new(extents: [usize; 4]) -> anyhow::Result<Self> {
        let [batch, channels, height, width] = extents;
        let text = format!("{batch}x{channels}x{height}x{width}");
        ensure!(!extents.contains(&0), "every extent must be at least 1, got {text:?}");
        let elements = extents.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
        let elements = elements.unwrap_or(usize::MAX);
        let most = Self::MOST_ELEMENTS;
        ensure!(elements <= most, "a shape may have {most} elements, {text:?} has {elements} or more");
        Ok(Self(extents))
    }

    /// Elements of a tensor of this shape.
    pub(crate) fn elements(self) -> usize {
        self.0.iter().product()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [batch, channels, height, width] = self.0;
        f.pad(&format!("{batch}x{channels}x{height}x{width}"))
    }
}

impl FromStr for Shape {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let extents = text
            .split('x')
            .map(|part| part.parse::<usize>().with_context(|| format!("{part:?} is not a number")))
            .collect::<Result<Vec<_>, _>>()
            .with_context(|| format!("expected BxCxHxW, got {text:?}"))?;
        let Ok(extents) = <[usize; 4]>::try_from(extents) else {
            bail!("expected the four extents BxCxHxW, got {text:?}");
        };
        Self::new(extents)
    }
}

impl TryFrom<String> for Shape {
    type Error = anyhow::Error;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Shape> for String {
    fn from(shape: Shape) -> Self {
        shape.to_string()
    }
}

/// Writes a value as it is written on the command line.
macro_rules! display_as_argument {
    ($($type:ty),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let value = self.to_possible_value().expect("no value is hidden");
                f.pad(value.get_name())
            }
        }
    )*};
}
display_as_argument!(Dtype, Pass, Layout, Preset);

/// Element type of the input and the parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Dtype {
    F32,
    F16,
    Bf16,
}

impl Dtype {
    pub(crate) fn of_tensors(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }

    pub(crate) fn of_kernels(self) -> wtconv_kernels::Dtype {
        match self {
            Self::F32 => wtconv_kernels::Dtype::F32,
            Self::F16 => wtconv_kernels::Dtype::F16,
            Self::Bf16 => wtconv_kernels::Dtype::BF16,
        }
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        self.of_kernels().size()
    }
}

/// What a call computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Pass {
    /// The output, without autodiff
    Forward,
    /// The gradients of the input and of every parameter, with the forward done before and not timed
    Backward,
    /// Forward and backward under autodiff
    Train,
}

/// How the input and the output's gradient lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Layout {
    /// Contiguous `[batch, channels, height, width]`
    Nchw,
    /// The same axes over memory that is contiguous as `[batch, height, width, channels]`
    Nhwc,
}

/// The ways that the command line selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RouteChoice {
    /// The layer through fused kernels; refused where the backend has none
    Fused,
    /// The layer through tensor ops
    TensorOps,
    /// What it replaces: depthwise 7x7 and 5x5, by `DepthwiseConv2d` and by Burn's conv2d
    Depthwise,
}

/// The way that a row was computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Route {
    Fused,
    TensorOps,
    /// `DepthwiseConv2d` with a filter of this side.
    Depthwise(usize),
    /// Burn's own conv2d with a filter of this side.
    Conv2d(usize),
    /// The reference operator in tensor ops, with a filter of this side, by autodiff.
    Reference(usize),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fused => f.pad("fused"),
            Self::TensorOps => f.pad("tensor-ops"),
            Self::Depthwise(side) => f.pad(&format!("depthwise-{side}x{side}")),
            Self::Conv2d(side) => f.pad(&format!("conv2d-{side}x{side}")),
            Self::Reference(side) => f.pad(&format!("reference-{side}x{side}")),
        }
    }
}

/// Sides of the depthwise filters that a wavelet convolution replaces.
const DEPTHWISE_SIDES: [usize; 2] = [7, 5];

/// Named sets of shapes and levels; all with a kernel size of 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Preset {
    /// The four stages of WTConvNeXt-T at batch 64
    #[value(name = "wtconvnext-t")]
    WtconvnextT,
    /// The four stages of WTConvNeXt-S, which are those of T, only deeper
    #[value(name = "wtconvnext-s")]
    WtconvnextS,
    /// The four stages of WTConvNeXt-B at batch 64
    #[value(name = "wtconvnext-b")]
    WtconvnextB,
    /// Levels 1 to 5 over a broad range of shapes
    Paper,
    /// Sizes 60/30/15 beside 64/32/16 beside 56/28/14/7, and odd primes
    Cliffs,
    /// Planes of 512x512, 1024x1024 and 2048x2048
    Large,
    /// Two tiny shapes: shows that everything works, and measures nothing of interest
    Smoke,
}

/// A wavelet convolution to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) shape: Shape,
    pub(crate) levels: usize,
    pub(crate) kernel_size: usize,
}

/// Side of the filters of every preset.
const PRESET_KERNEL_SIZE: usize = 5;

impl Case {
    /// A plane of 65,536 pixels on a side ends after 16 halvings; all levels below are the same single coefficients.
    const MOST_LEVELS: usize = 16;
    /// The largest filter side that is of interest: four times that of the largest known depthwise networks.
    const MOST_KERNEL_SIZE: usize = 255;

    /// A case with numbers from the command line.
    ///
    /// # Errors
    ///
    /// If the levels or the kernel size are out of bounds.
    pub(crate) fn new(shape: Shape, levels: usize, kernel_size: usize) -> anyhow::Result<Self> {
        let (most_levels, most_side) = (Self::MOST_LEVELS, Self::MOST_KERNEL_SIZE);
        ensure!(levels <= most_levels, "--levels must be at most {most_levels}, got {levels}");
        ensure!(
            (1..=most_side).contains(&kernel_size),
            "--kernel-size must be from 1 to {most_side}, got {kernel_size}"
        );
        Ok(Self { shape, levels, kernel_size })
    }
}

impl Preset {
    pub(crate) fn cases(self) -> Vec<Case> {
        let case = |extents, levels| Case { shape: Shape(extents), levels, kernel_size: PRESET_KERNEL_SIZE };
        let stages = |width: usize| -> Vec<Case> {
            (0..4).map(|stage| case([64, width << stage, 56 >> stage, 56 >> stage], 5 - stage)).collect()
        };
        match self {
            Self::WtconvnextT | Self::WtconvnextS => stages(96),
            Self::WtconvnextB => stages(128),
            Self::Paper => {
                let shapes = [
                    [64, 96, 56, 56],
                    [64, 192, 28, 28],
                    [64, 384, 14, 14],
                    [64, 768, 7, 7],
                    [128, 64, 32, 32],
                    [32, 128, 64, 64],
                    [32, 64, 128, 128],
                    [16, 64, 224, 224],
                ];
                shapes.into_iter().flat_map(|shape| (1..=5).map(move |levels| case(shape, levels))).collect()
            }
            Self::Cliffs => {
                let sides = [60, 30, 15, 64, 32, 16, 56, 28, 14, 7, 11, 13, 17, 31, 47, 53, 61];
                sides.into_iter().map(|side| case([64, 64, side, side], 3)).collect()
            }
            Self::Large => {
                let shapes = [[4, 64, 512, 512], [2, 64, 1024, 1024], [1, 32, 2048, 2048]];
                shapes.into_iter().flat_map(|shape| [3, 5].map(|levels| case(shape, levels))).collect()
            }
            Self::Smoke => vec![case([2, 8, 16, 16], 2), case([1, 4, 15, 9], 3)],
        }
    }
}

/// Everything that is asked of a sweep.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub(crate) cases: Vec<Case>,
    pub(crate) dtypes: Vec<Dtype>,
    pub(crate) layouts: Vec<Layout>,
    pub(crate) passes: Vec<Pass>,
    pub(crate) routes: Vec<RouteChoice>,
}

/// Measurements that share an input: one shape, dtype and layout.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Group {
    pub(crate) shape: Shape,
    pub(crate) dtype: Dtype,
    pub(crate) layout: Layout,
    /// In the order of measurement: what is compared with comes first.
    pub(crate) measurements: Vec<Measurement>,
}

/// One row to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Measurement {
    pub(crate) case: Case,
    pub(crate) route: Route,
    pub(crate) pass: Pass,
}

impl Selection {
    pub(crate) fn groups(&self) -> Vec<Group> {
        let mut shapes: Vec<Shape> = Vec::new();
        for case in &self.cases {
            if !shapes.contains(&case.shape) {
                shapes.push(case.shape);
            }
        }
        let mut groups = Vec::new();
        for &dtype in &self.dtypes {
            for &layout in &self.layouts {
                for &shape in &shapes {
                    groups.push(Group { shape, dtype, layout, measurements: self.measurements(shape) });
                }
            }
        }
        groups
    }

    fn measurements(&self, shape: Shape) -> Vec<Measurement> {
        let mut ways: Vec<(Case, Route)> = Vec::new();
        if self.routes.contains(&RouteChoice::Depthwise) {
            for side in DEPTHWISE_SIDES {
                let case = Case { shape, levels: 0, kernel_size: side };
                ways.extend([Route::Conv2d(side), Route::Depthwise(side)].map(|route| (case, route)));
            }
        }
        for &case in self.cases.iter().filter(|case| case.shape == shape) {
            for (choice, route) in
                [(RouteChoice::TensorOps, Route::TensorOps), (RouteChoice::Fused, Route::Fused)]
            {
                if self.routes.contains(&choice) {
                    ways.push((case, route));
                }
            }
        }
        let rows = |(case, route): (Case, Route)| {
            self.passes.iter().map(move |&pass| Measurement { case, route, pass })
        };
        ways.into_iter().flat_map(rows).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_bounds_are_refused_with_both_numbers() {
        let shape: Shape = "1x2x3x4".parse().unwrap();
        assert!(Case::new(shape, 16, 255).is_ok());
        let refusal = |levels, side| Case::new(shape, levels, side).unwrap_err().to_string();
        assert_eq!(refusal(17, 5), "--levels must be at most 16, got 17");
        assert_eq!(refusal(1, 0), "--kernel-size must be from 1 to 255, got 0");
        assert_eq!(refusal(1, 256), "--kernel-size must be from 1 to 255, got 256");
        assert!("65536x65536x4x4".parse::<Shape>().is_ok());
        let refusal = "65536x65536x4x5".parse::<Shape>().unwrap_err().to_string();
        assert!(refusal.contains("68719476736") && refusal.contains("85899345920"), "{refusal}");
        assert!("99999999999x99999999999x9x9".parse::<Shape>().is_err());
    }

    #[test]
    fn shapes_are_read_as_they_are_written() {
        let shape: Shape = "64x96x56x7".parse().unwrap();
        assert_eq!(shape, Shape([64, 96, 56, 7]));
        assert_eq!(shape.to_string(), "64x96x56x7");
        assert_eq!(shape.elements(), 64 * 96 * 56 * 7);
        for wrong in ["", "1x2x3", "1x2x3x4x5", "1x2x3xa", "1x0x3x4", "1x2x3x-4"] {
            assert!(wrong.parse::<Shape>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn presets_hold_what_their_names_say() {
        let stages: Vec<String> = Preset::WtconvnextT
            .cases()
            .iter()
            .map(|case| format!("{} L{} K{}", case.shape, case.levels, case.kernel_size))
            .collect();
        assert_eq!(
            stages,
            ["64x96x56x56 L5 K5", "64x192x28x28 L4 K5", "64x384x14x14 L3 K5", "64x768x7x7 L2 K5"]
        );
        assert_eq!(Preset::WtconvnextS.cases(), Preset::WtconvnextT.cases());
        let widths: Vec<usize> = Preset::WtconvnextB.cases().iter().map(|case| case.shape.0[1]).collect();
        assert_eq!(widths, [128, 256, 512, 1024]);
        assert!((1..=5).all(|levels| Preset::Paper.cases().iter().any(|case| case.levels == levels)));
        let sides: Vec<usize> = Preset::Cliffs.cases().iter().map(|case| case.shape.0[2]).collect();
        assert!([60, 30, 15, 64, 32, 16, 56, 28, 14, 7].iter().all(|side| sides.contains(side)));
        for side in [512, 1024, 2048] {
            assert!(Preset::Large.cases().iter().any(|case| case.shape.0[2..] == [side, side]), "{side}");
        }
        assert!(Preset::Smoke.cases().iter().all(|case| case.shape.elements() <= 4096));
    }

    #[test]
    fn depthwise_rows_come_once_a_shape_and_first() {
        let selection = Selection {
            cases: Preset::Paper.cases(),
            dtypes: vec![Dtype::F32, Dtype::F16],
            layouts: vec![Layout::Nchw],
            passes: vec![Pass::Forward, Pass::Train],
            routes: RouteChoice::value_variants().to_vec(),
        };
        let groups = selection.groups();
        assert_eq!(groups.len(), 2 * 8);
        for group in groups {
            assert_eq!(group.measurements.len(), (4 + 5 * 2) * 2);
            let last_depthwise = group.measurements.iter().rposition(|row| row.case.levels == 0);
            assert_eq!(last_depthwise, Some(7));
        }
    }
}
