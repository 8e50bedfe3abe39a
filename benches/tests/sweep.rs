//! The program as a user runs it, on one tiny shape.
#![cfg(feature = "flex")]

use std::path::Path;
use std::process::{Command, Output};
#[cfg(unix)]
use std::{
    process::{Child, Stdio},
    time::Duration,
};

use serde_json::Value;

fn benches(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_benches")).args(arguments).output().expect("the program starts")
}

fn sweep(out: &Path, more: &[&str]) -> Output {
    let out = out.to_str().expect("a path in UTF-8");
    let fixed = ["sweep", "--backend", "flex", "--shape", "1x2x5x4", "--levels", "2", "--out", out];
    benches(&[&fixed, more].concat())
}

fn results(out: &Path) -> Value {
    let text = std::fs::read_to_string(out.join("results.json")).expect("results.json is written");
    serde_json::from_str(&text).expect("results.json is JSON")
}

fn rows(out: &Path) -> Vec<Value> {
    results(out)["rows"].as_array().expect("rows").clone()
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
    let written = ["results.json", "report.md", "floor-train.svg"];
    let contents = || written.map(|file| std::fs::read_to_string(out.join(file)).unwrap());
    let before = contents();
    std::fs::remove_file(out.join("report.md")).unwrap();
    std::fs::write(out.join("floor-train.svg"), "").unwrap();
    assert!(benches(&["report", path]).status.success());
    assert_eq!(contents(), before);
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
fn numbers_that_make_no_sense_are_errors_of_the_command_line() {
    let wrong = [
        ("depthwise", "--channels", "0", "0 is not in 1..=65536"),
        ("depthwise", "--batch", "0", "0 is not in 1..=65536"),
        ("depthwise", "--side", "0", "0 is not in 1..=65536"),
        ("depthwise", "--kernel-size", "4", "expected an odd number from 1 to 63, got 4"),
        ("depthwise", "--kernel-size", "65", "expected an odd number from 1 to 63, got 65"),
        ("model", "--batch", "0", "0 is not in 1..="),
        ("model", "--size", "31", "31 is not in 32..="),
        ("model", "--classes", "0", "0 is not in 1..="),
        ("sweep", "--commit", "a\nb", "expected letters, digits"),
        ("model", "--commit", "", "expected letters, digits"),
    ];
    for (command, option, value, words) in wrong {
        let output = benches(&[command, option, value]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command} {option} {value}: {text}");
        assert!(text.contains(words), "{command} {option} {value}: {text}");
    }
}

#[test]
fn the_ways_of_a_depthwise_convolution_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let shape =
        ["--batch", "1", "--channels", "3,3", "--side", "1", "--kernel-size", "3", "--row-time", "0s"];
    let output = benches(&[&["depthwise", "--out", out], &shape[..]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows = rows(directory.path());
    let routes: Vec<_> = rows.iter().map(|row| row["route"].as_str().unwrap()).collect();
    assert_eq!(routes, ["conv2d-3x3", "reference-3x3", "depthwise-3x3"]);
    for row in &rows {
        assert_eq!((&row["status"], &row["shape"]), (&"measured".into(), &"1x3x32x32".into()), "{row}");
        assert!(row["errors"]["filters"].as_f64().unwrap() < 1e-4, "{row}");
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
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("the time budget was spent: 3 of 3 rows are missing"), "{text}");
    let rows = rows(directory.path());
    assert_eq!(rows.len(), 3);
    for row in rows {
        assert_eq!(
            (&row["status"], &row["reason"]),
            (&"skipped".into(), &"the time budget was spent".into())
        );
    }
}

/// Starts a sweep that takes a while, and calls `end` on it once a row has been measured and another has begun.
#[cfg(unix)]
fn ended_midway(out: &Path, end: impl FnOnce(&mut Child)) -> (Output, Vec<Value>) {
    let options =
        ["sweep", "--backend", "flex", "--shape", "1x2x5x4", "--levels", "2", "--route", "tensor-ops"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(options)
        .arg("--out")
        .arg(out)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let measured = || {
        let text = std::fs::read_to_string(out.join("results.json")).unwrap_or_default();
        text.contains("\"status\": \"measured\"")
    };
    while !measured() {
        assert!(child.try_wait().unwrap().is_none(), "ended before a row was on disk");
        std::thread::sleep(Duration::from_millis(2));
    }
    end(&mut child);
    (child.wait_with_output().unwrap(), rows(out))
}

#[cfg(unix)]
#[test]
fn an_interrupted_sweep_says_so_and_keeps_its_rows() {
    let directory = tempfile::tempdir().unwrap();
    let (output, rows) = ended_midway(directory.path(), |child| {
        let sent = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    });
    assert_eq!(output.status.code(), Some(130));
    let skipped = rows.iter().filter(|row| row["status"] == "skipped").count();
    assert!(rows.len() == 3 && (1..3).contains(&skipped), "{rows:?}");
    assert!(rows.iter().all(|row| row["status"] != "skipped" || row["reason"] == "interrupted"), "{rows:?}");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains(&format!("interrupted: {skipped} of 3 rows are missing")), "{text}");
    assert!(directory.path().join("report.md").exists());
}

#[cfg(unix)]
#[test]
fn a_sweep_that_is_killed_leaves_every_row_with_what_became_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let (output, rows) = ended_midway(directory.path(), |child| child.kill().unwrap());
    assert!(!output.status.success());
    let ends: Vec<_> = rows.iter().map(|row| row["reason"].as_str().unwrap_or("measured")).collect();
    let (reached, rest) = ends.split_at(ends.iter().take_while(|end| **end == "measured").count());
    assert!(ends.len() == 3 && !reached.is_empty(), "{ends:?}");
    assert_eq!(rest[0], "the process ended while this row was measured");
    assert!(rest[1..].iter().all(|end| *end == "the process ended before this row"), "{ends:?}");
}

#[test]
fn what_does_not_fit_in_memory_is_refused_before_it_is_allocated() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    // 256 GiB in f32; the oracle's numbers take terabytes.
    let sweep = [
        "sweep",
        "--shape",
        "1x1x262144x262144",
        "--pass",
        "forward,train",
        "--route",
        "tensor-ops",
        "--out",
    ];
    let model =
        ["model", "--batch", "65536", "--size", "512", "--mode", "train", "--model", "convnext-t", "--out"];
    for (arguments, field, count) in [(&sweep[..], "rows", 2), (&model[..], "models", 1)] {
        let output = benches(&[arguments, &[out]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let rows = results(directory.path())[field].as_array().unwrap().clone();
        assert_eq!(rows.len(), count, "{rows:?}");
        for row in rows {
            let reason = row["reason"].as_str().unwrap_or_default();
            assert!(row["status"] == "refused" && reason.contains("the host has free"), "{row}");
        }
    }
}

#[test]
fn without_a_terminal_every_row_is_a_plain_line() {
    let directory = tempfile::tempdir().unwrap();
    let output =
        sweep(directory.path(), &["--pass", "forward", "--row-time", "0s", "--route", "tensor-ops,fused"]);
    let text = String::from_utf8(output.stderr).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("1/2 rows, ") && lines[0].ends_with(" ms"), "{text}");
    assert!(lines[1].starts_with("2/2 rows, ") && lines[1].contains("about 0 seconds left"), "{text}");
    assert!(lines[1].contains("1x2x5x4 L2 K5 f32 nchw forward fused: refused: "), "{text}");
    assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
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
