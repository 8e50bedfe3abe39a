//! Tables with aligned columns, in text and in Markdown.

use crate::results::{ModelRow, Results, Row, Status};
use crate::statistics::Timing;

/// A table; the first row of cells is its head.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { rows: vec![head.into_iter().map(Into::into).collect()] }
    }

    pub(crate) fn push(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Rows below the head.
    pub(crate) fn len(&self) -> usize {
        self.rows.len() - 1
    }

    /// Without the columns of these names, and without those that have nothing in them.
    pub(crate) fn without(&self, names: &[&str]) -> Self {
        let (head, body) = self.rows.split_first().expect("a table has a head");
        let kept = |column: usize| {
            let empty = |row: &Vec<String>| matches!(row[column].as_str(), "" | "-");
            !names.contains(&head[column].as_str()) && !body.iter().all(empty)
        };
        let columns: Vec<usize> = (0..head.len()).filter(|&column| kept(column)).collect();
        let cells = |row: &Vec<String>| columns.iter().map(|&column| row[column].clone()).collect();
        Self { rows: self.rows.iter().map(cells).collect() }
    }

    /// Columns padded to one width; numbers to the right.
    pub(crate) fn to_text(&self) -> String {
        let widths = self.widths();
        let mut text = String::new();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, &width)| {
                if looks_like_a_number(cell) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
            });
            text += cells.collect::<Vec<_>>().join("  ").trim_end();
            text.push('\n');
        }
        text
    }

    /// A Markdown table.
    pub(crate) fn to_markdown(&self) -> String {
        let mut text = String::new();
        for (index, row) in self.rows.iter().enumerate() {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            text += &format!("| {} |\n", cells.join(" | "));
            if index == 0 {
                text += &format!("|{}\n", "---|".repeat(row.len()));
            }
        }
        text
    }

    fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        (0..columns).map(|column| width(column).unwrap_or(0)).collect()
    }
}

fn looks_like_a_number(cell: &str) -> bool {
    cell == "-" || cell.starts_with(|first: char| first.is_ascii_digit()) && !cell.contains('x')
}

/// Three significant digits and no exponent, `-` for nothing.
pub(crate) fn number(value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else { return "-".to_owned() };
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = value.abs().log10().floor() as i32;
    format!("{value:.*}", usize::try_from(2 - magnitude).unwrap_or(0).min(9))
}

/// An error with one digit behind the point, `-` for nothing.
pub(crate) fn error(value: Option<f64>) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.1e}"))
}

/// MiB with three significant digits.
pub(crate) fn mebibytes(bytes: Option<u64>) -> String {
    number(bytes.map(|bytes| bytes as f64 / f64::from(1 << 20)))
}

/// How a row ended, in one line.
pub(crate) fn ending(status: Status, timing: Option<Timing>, reason: Option<&str>) -> String {
    match status {
        Status::Measured => format!("{} ms", number(timing.map(|timing| timing.median_ms))),
        _ => outcome(status, reason),
    }
}

/// `measured` is the rule, and is told by its numbers; everything else is said.
fn outcome(status: Status, reason: Option<&str>) -> String {
    let status = match status {
        Status::Measured => return String::new(),
        Status::Wrong => "WRONG",
        Status::Refused => "refused",
        Status::Failed => "FAILED",
        Status::Skipped => "skipped",
    };
    match reason {
        Some(reason) => format!("{status}: {reason}"),
        None => status.to_owned(),
    }
}

/// All rows with the fields that people compare.
pub(crate) fn rows(results: &Results) -> Table {
    let mut table = Table::new([
        "shape",
        "L",
        "K",
        "dtype",
        "layout",
        "pass",
        "route",
        "ms",
        "p10",
        "p90",
        "first ms",
        "x tensor-ops",
        "x conv2d 7x7",
        "x depthwise 7x7",
        "ns/pixel",
        "GB/s",
        "of copy",
        "x floor",
        "MB moved",
        "paper",
        "reference",
        "launches",
        "peak MiB",
        "error",
        "null",
        "",
    ]);
    for row in &results.rows {
        table.push(row_cells(row));
    }
    table
}

fn row_cells(row: &Row) -> Vec<String> {
    let key = &row.key;
    let timing = |part: fn(&Timing) -> f64| number(row.timing.as_ref().map(part));
    let megabytes = |bytes: Option<f64>| number(bytes.map(|bytes| bytes * 1e-6));
    vec![
        key.shape.to_string(),
        key.levels.to_string(),
        key.kernel_size.to_string(),
        key.dtype.to_string(),
        key.layout.to_string(),
        key.pass.to_string(),
        key.route.clone(),
        timing(|timing| timing.median_ms),
        timing(|timing| timing.p10_ms),
        timing(|timing| timing.p90_ms),
        number(row.first_call_ms),
        number(row.over_tensor_ops),
        number(row.over_conv2d_7x7),
        number(row.over_depthwise_7x7),
        number(row.ns_per_pixel),
        number(row.bandwidth_gb_s),
        number(row.copy_share),
        number(row.floor_ratio),
        megabytes(row.plan_bytes),
        megabytes(row.paper_bytes),
        megabytes(row.reference_bytes),
        row.launches.map_or("-".to_owned(), |launches| launches.to_string()),
        mebibytes(row.peak_memory_bytes),
        error(row.error()),
        row.null_comparison().map_or("-".to_owned(), |(ratio, within)| {
            format!("{ratio:.2}{}", if within { "" } else { " beyond its spread" })
        }),
        outcome(row.status, row.reason.as_deref()),
    ]
}

/// All models.
pub(crate) fn models(results: &Results) -> Table {
    let mut table = Table::new([
        "model",
        "dtype",
        "mode",
        "batch",
        "size",
        "ms",
        "p10",
        "p90",
        "first ms",
        "images/s",
        "peak MiB",
        "mixing ms",
        "mixing share",
        "",
    ]);
    for row in &results.models {
        table.push(model_cells(row));
    }
    table
}

fn model_cells(row: &ModelRow) -> Vec<String> {
    let timing = |part: fn(&Timing) -> f64| number(row.timing.as_ref().map(part));
    vec![
        row.model.clone(),
        row.dtype.to_string(),
        row.mode.clone(),
        row.batch.to_string(),
        row.size.to_string(),
        timing(|timing| timing.median_ms),
        timing(|timing| timing.p10_ms),
        timing(|timing| timing.p90_ms),
        number(row.first_call_ms),
        number(row.images_per_second),
        mebibytes(row.peak_memory_bytes),
        number(row.mixing_ms),
        number(row.mixing_share),
        outcome(row.status, row.reason.as_deref()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cases::Pass;
    use crate::results::samples::{results, row};

    #[test]
    fn numbers_have_three_significant_digits() {
        let texts = [0.001234, 0.1234, 1.234, 12.34, 123.4, 1234.0, 0.0].map(|value| number(Some(value)));
        assert_eq!(texts, ["0.00123", "0.123", "1.23", "12.3", "123", "1234", "0"]);
        assert_eq!(number(None), "-");
        assert_eq!(number(Some(f64::NAN)), "-");
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["route", "ms"]);
        table.push(vec!["fused".to_owned(), "1.5".to_owned()]);
        table.push(vec!["tensor-ops".to_owned(), "12.5".to_owned()]);
        assert_eq!(table.to_text(), "route       ms\nfused        1.5\ntensor-ops  12.5\n");
        assert_eq!(
            table.to_markdown(),
            "| route | ms |\n|---|---|\n| fused | 1.5 |\n| tensor-ops | 12.5 |\n"
        );
    }

    #[test]
    fn columns_are_left_out_by_name_and_when_empty() {
        let mut table = Table::new(["route", "ms", "launches", "paper"]);
        table.push(["fused", "1.5", "-", "7"].map(str::to_owned).to_vec());
        table.push(["tensor-ops", "-", "-", "7"].map(str::to_owned).to_vec());
        assert_eq!(table.without(&["paper"]).to_text(), "route       ms\nfused       1.5\ntensor-ops    -\n");
    }

    #[test]
    fn a_row_that_was_refused_is_there_with_its_reason() {
        let mut refused = row("fused", 2, Pass::Forward, 1.0);
        refused.status = Status::Refused;
        refused.reason = Some("no kernels".to_owned());
        refused.timing = None;
        let text = rows(&results(vec![refused])).to_text();
        assert!(text.contains("refused: no kernels"), "{text}");
    }
}
