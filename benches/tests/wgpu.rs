//! The program on wgpu.
#![cfg(feature = "wgpu")]

use std::process::Command;

use serde_json::Value;

/// Every row of the preset is measured and right: the command fails on a wrong one.
#[test]
fn the_smoke_preset_is_measured() {
    let directory = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_benches"))
        .args(["sweep", "--backend", "wgpu", "--preset", "smoke", "--row-time", "0.1s", "--out"])
        .arg(directory.path())
        .output()
        .expect("the program starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let text = std::fs::read_to_string(directory.path().join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let rows = results["rows"].as_array().expect("rows");
    assert!(rows.iter().any(|row| row["route"] == "fused"));
    for row in rows {
        assert_eq!(row["status"], "measured", "{row}");
        assert!(row["errors"]["y"].is_number() || row["pass"] == "backward", "{row}");
    }
    for output in ["report.md", "speedup-forward.svg", "speedup-forward.png", "pixel-train.svg"] {
        assert!(directory.path().join(output).exists(), "{output}");
    }
}
