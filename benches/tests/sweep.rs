//! The program as a user runs it, on one tiny shape.
#![cfg(feature = "flex")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn benches(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_benches")).args(arguments).output().expect("the program starts")
}

fn sweep(out: &Path, more: &[&str]) -> Output {
    let out = out.to_str().expect("a path in UTF-8");
    let fixed = ["sweep", "--backend", "flex", "--shape", "1x2x5x4", "--levels", "2", "--out", out];
    benches(&[&fixed, more].concat())
}

fn rows(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("results.json")).expect("results.json is written");
    let results: Value = serde_json::from_str(&text).expect("results.json is JSON");
    results["rows"].as_array().expect("rows").clone()
}

#[test]
fn a_sweep_writes_everything_and_compares_with_itself() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("run");
    let output = sweep(&out, &["--pass", "forward,train", "--null"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));

    let rows = rows(&out);
    // Four depthwise ways, tensor ops and fused, two passes each.
    assert_eq!(rows.len(), 12);
    for row in &rows {
        if row["route"] == "fused" {
            assert_eq!(row["status"], "refused");
            assert!(row["reason"].as_str().unwrap().contains("no fused kernels"), "{row}");
        } else {
            assert_eq!(row["status"], "measured", "{row}");
            assert!(row["timing"]["median_ms"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["first_call_ms"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["again"]["median_ms"].as_f64().unwrap() > 0.0, "{row}");
            assert!(row["peak_memory_bytes"].as_u64().unwrap() >= 2 * 5 * 4 * 4, "{row}");
            assert!(row["errors"]["y"].as_f64().unwrap() < 1e-5, "{row}");
            assert_eq!(row["errors"]["dx"].is_number(), row["pass"] == "train", "{row}");
            assert!(row["over_conv2d_7x7"].is_number() && row["floor_ratio"].is_number(), "{row}");
        }
    }
    assert!(text.contains("refused: the backend"), "{text}");
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    for name in ["speedup-forward", "memory-train", "pixel-train", "floor-forward"] {
        assert!(report.contains(&format!("({name}.svg)")), "{name}");
        assert!(
            std::fs::read_to_string(out.join(format!("{name}.svg"))).unwrap().contains("</svg>"),
            "{name}"
        );
        assert!(std::fs::read(out.join(format!("{name}.png"))).unwrap().starts_with(b"\x89PNG"), "{name}");
    }
    let path = out.to_str().unwrap();
    let compared = benches(&["compare", path, path]);
    assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stdout));
}

#[test]
fn what_is_asked_for_twice_is_measured_once() {
    let directory = tempfile::tempdir().unwrap();
    let twice = ["--shape", "1x2x5x4", "--levels", "2", "--kernel-size", "3,3", "--dtype", "f32,f32"];
    let more = ["--layout", "nchw,nchw", "--pass", "forward,forward", "--route", "tensor-ops,tensor-ops"];
    let output = sweep(directory.path(), &[&twice[..], &more[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(rows(directory.path()).len(), 1);
}

#[test]
fn a_place_that_cannot_be_written_is_told_before_the_measuring() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "kept").unwrap();
    let file = file.to_str().unwrap();
    // These take minutes, were they measured.
    let sweep = ["sweep", "--shape", "64x96x56x56", "--route", "tensor-ops", "--out", file];
    let model = ["model", "--model", "wtconvnext-b", "--out", file];
    for arguments in [&sweep[..], &model[..]] {
        let output = benches(arguments);
        assert!(!output.status.success());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("cannot write into") && text.contains(file), "{text}");
        assert!(!text.contains("wtconvnext-b f32"), "{text}");
    }
    assert_eq!(std::fs::read_to_string(file).unwrap(), "kept");
}

#[test]
fn a_depthwise_convolution_of_nothing_is_refused() {
    for option in ["--channels", "--batch", "--side"] {
        let output = benches(&["depthwise", option, "0"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(text.contains("must be at least 1") && !text.contains("panicked"), "{option}: {text}");
    }
}

#[test]
fn runs_without_a_row_in_common_are_not_alike() {
    let directory = tempfile::tempdir().unwrap();
    let runs = ["forward", "train"].map(|pass| {
        let out = directory.path().join(pass);
        assert!(sweep(&out, &["--pass", pass, "--route", "tensor-ops"]).status.success());
        out.to_str().unwrap().to_owned()
    });
    let output = benches(&["compare", &runs[0], &runs[1]]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("nothing to compare"));
}

#[test]
fn what_the_time_budget_does_not_reach_is_a_row_too() {
    let directory = tempfile::tempdir().unwrap();
    let output = sweep(directory.path(), &["--time-budget", "0s", "--route", "tensor-ops"]);
    assert!(output.status.success());
    let rows = rows(directory.path());
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(
            (&row["status"], &row["reason"]),
            (&"skipped".into(), &"the time budget was spent".into())
        );
    }
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_backend_that_is_not_in_the_build_names_its_feature() {
    let output = benches(&["sweep", "--backend", "cuda"]);
    assert!(!output.status.success());
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no cuda backend") && text.contains("--features cuda"), "{text}");
}

#[test]
fn the_readme_is_in_step_with_the_records() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the root of the repository");
    let output = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(["readme", "--check"])
        .current_dir(root)
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
