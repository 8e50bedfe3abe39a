//! `report.md`.

use crate::report::table;
use crate::results::Results;

/// The run in one paragraph.
pub(crate) fn machine(results: &Results) -> String {
    let machine = &results.machine;
    let driver = machine.driver.as_ref().map(|driver| format!(", driver {driver}")).unwrap_or_default();
    let commit = results.commit.as_ref().map(|commit| format!(" at commit `{commit}`")).unwrap_or_default();
    let software: Vec<String> =
        results.software.iter().map(|(name, version)| format!("{name} {version}")).collect();
    format!(
        "{}: {}{driver}; {} ({} threads), {}. By `{}`{commit}, {}. {}.\n",
        results.label,
        machine.device,
        machine.cpu,
        machine.threads,
        machine.os,
        results.command_line,
        results.date,
        software.join(", "),
    )
}

/// The whole report; `plots` are the names of the pictures beside it.
pub(crate) fn report(results: &Results, plots: &[&str]) -> String {
    let mut text = format!("# {}\n\n{}\n", results.label, machine(results));
    for name in plots {
        text += &format!("![{name}]({name}.svg)\n\n");
    }
    if !results.rows.is_empty() {
        text += &format!("## Rows\n\n{}\n", table::rows(results).to_markdown());
        let compared: Vec<(f64, bool)> =
            results.rows.iter().filter_map(|row| row.null_comparison()).collect();
        if !compared.is_empty() {
            let mut ratios: Vec<f64> = compared.iter().map(|(ratio, _)| *ratio).collect();
            ratios.sort_by(f64::total_cmp);
            let median = crate::statistics::percentile(&ratios, 0.5);
            let within = compared.iter().filter(|(_, within)| *within).count();
            text += &format!(
                "Every row against itself: median {}, from {} to {}; {within} of {} within the spreads of both.\n\n",
                table::number(median),
                table::number(ratios.first().copied()),
                table::number(ratios.last().copied()),
                compared.len()
            );
        }
    }
    if !results.models.is_empty() {
        text += &format!("## Models\n\n{}\n", table::models(results).to_markdown());
    }
    text += "## How it was measured\n\n";
    for (field, words) in &results.method {
        text += &format!("* `{field}`: {words}.\n");
    }
    text
}
