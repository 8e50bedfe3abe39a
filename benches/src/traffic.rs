//! `traffic`: the model of the bytes that pass through device memory, which needs no device.

use std::process::ExitCode;

use clap::Args;
use wtconv_kernels::DeviceLimits;

use crate::cases::{Case, Dtype, Layout, Pass, Shape};
use crate::cost;
use crate::output::say;
use crate::report::table::{Table, number};

/// Options of `traffic`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Shapes BxCxHxW
    #[arg(long, value_delimiter = ',', default_value = "64x96x56x56,8x64x512x512", value_name = "BxCxHxW")]
    shape: Vec<Shape>,
    /// Wavelet levels
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 3, 4, 5])]
    levels: Vec<usize>,
    /// Height and width of a filter
    #[arg(long, default_value_t = 5)]
    kernel_size: usize,
    /// Element type
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Order of the input's axes in memory
    #[arg(long, value_enum, default_value_t = Layout::Nchw)]
    layout: Layout,
}

/// Prints the table.
pub(crate) fn run(options: &Options) -> anyhow::Result<ExitCode> {
    let table = table(options)?;
    say!(
        "Traffic in units of the input ({} elements, {}), by the models of the reference layer, of the paper's fused \
         kernels and of this project's plans on an NVIDIA GPU of the Hopper generation; launches in brackets",
        options.dtype,
        options.layout
    );
    say!("{}", table.to_text().trim_end());
    Ok(ExitCode::SUCCESS)
}

fn table(options: &Options) -> anyhow::Result<Table> {
    let mut table = Table::new([
        "shape",
        "L",
        "K",
        "reference",
        "paper",
        "forward",
        "backward",
        "train",
        "forward MB",
        "reference/forward",
    ]);
    for &shape in &options.shape {
        for &levels in &options.levels {
            let case = Case::new(shape, levels, options.kernel_size)?;
            table.push(cells(&case, options));
        }
    }
    Ok(table)
}

fn cells(case: &Case, options: &Options) -> Vec<String> {
    let tensor = (case.shape.elements() * options.dtype.size()) as f64;
    let plan = |pass| cost::fused(case, options.dtype, options.layout, pass, &DeviceLimits::HOPPER);
    let planned = |pass| match plan(pass) {
        Ok(cost) => format!("{} ({})", number(Some(cost.bytes as f64 / tensor)), cost.launches),
        Err(refusal) => format!("refused: {refusal}"),
    };
    let [reference, paper] = [
        wtconv_kernels::traffic::reference_elements(case.levels),
        wtconv_kernels::traffic::published_fused_elements(case.levels),
    ];
    let forward = plan(Pass::Forward).ok().map(|cost| cost.bytes as f64);
    vec![
        case.shape.to_string(),
        case.levels.to_string(),
        case.kernel_size.to_string(),
        format!("{reference:.2}"),
        format!("{paper:.2}"),
        planned(Pass::Forward),
        planned(Pass::Backward),
        planned(Pass::Train),
        number(forward.map(|bytes| bytes * 1e-6)),
        number(forward.map(|bytes| reference * tensor / bytes)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_the_published_numbers_and_the_floor() {
        let options = Options {
            shape: vec![Shape([64, 96, 56, 56])],
            levels: vec![1, 5],
            kernel_size: 5,
            dtype: Dtype::F32,
            layout: Layout::Nchw,
        };
        let text = table(&options).unwrap().to_text();
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains("17.75") && lines[1].contains("7.00"), "{text}");
        assert!(
            lines[2].contains("21.32") && lines[2].contains("8.33") && lines[2].contains("2.00 (1)"),
            "{text}"
        );
        let refused = table(&Options { kernel_size: 4, ..options }).unwrap().to_text();
        assert!(refused.contains("refused: the kernels take odd filter sizes only, got 4"), "{refused}");
    }
}
