//! The accuracies in the READMEs are those of the recorded runs.

use serde_json::Value;
use std::fs;
use std::path::Path;

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).expect(path)
}

/// A text whose lines are broken in no particular place.
fn words(path: &str) -> String {
    read(path).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn record(name: &str) -> Value {
    serde_json::from_str(&read(&format!("record/{name}"))).expect(name)
}

#[test]
fn the_readmes_have_the_recorded_accuracies() {
    let index = record("runs.json");
    let commit = index["commit"].as_str().unwrap();
    let readmes = [read("README.md"), read("../../README.md")];
    for readme in &readmes {
        assert!(readme.contains(&format!("`{commit}`")), "the commit is {commit}");
    }
    let runs = index["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    for run in runs {
        let command = run["command"].as_str().unwrap();
        let history = record(run["history"].as_str().unwrap());
        let epochs = history.as_array().unwrap();
        let accuracy = epochs.last().unwrap()["val"]["accuracy"].as_f64().unwrap();
        let row = format!("| `{command}` | {} | {accuracy:.4} |", epochs.len());
        assert!(readmes[0].contains(&row), "no row {row}");
        if let Some(seconds) = run["seconds"].as_u64() {
            let (minutes, seconds) = (seconds / 60, seconds % 60);
            let text = format!("{accuracy:.4} after {} epochs, in {minutes} min {seconds} s", epochs.len());
            for readme in &readmes {
                assert!(readme.contains(&text), "no text {text}");
            }
        }
    }
}

#[test]
fn the_readme_has_the_recorded_speeds() {
    let readme = read("README.md");
    let mut last = Vec::new();
    let index = record("h200.json");
    let machines = index["machines"].as_array().unwrap();
    let commit = |machine: &Value| machine["commit"].as_str().unwrap().to_string();
    for machine in machines {
        let commit = commit(machine);
        for run in machine["runs"].as_array().unwrap() {
            let history = record(run["history"].as_str().unwrap());
            let [_, second, third] = history.as_array().unwrap().as_slice() else { panic!("three epochs") };
            let [second, third] = [second, third].map(|epoch| epoch["images_per_second"].as_f64().unwrap());
            last.push(format!("{third:.0}"));
            let shares = run["exchanging"].as_array().map_or(String::new(), |shares| {
                let shares: Vec<_> =
                    shares.iter().map(|share| format!("{:.1} %", share.as_f64().unwrap())).collect();
                shares.join(", ") + " "
            });
            let (dtype, devices) = (run["dtype"].as_str().unwrap(), &run["devices"]);
            let row = format!("| `{commit}` | {dtype} | {devices} | {second:.0}, {third:.0} | {shares}|");
            assert!(readme.contains(&row), "no row {row}");
        }
    }
    let [f32, bf16, f32_one, f32_two, bf16_one, bf16_two] = last.as_slice() else { panic!("six runs") };
    let (one, two) = (commit(&machines[0]), commit(&machines[1]));
    let text = format!(
        "{f32} images a second in f32 and {bf16} in bf16 on one H200 (commit `{one}`), {f32_two} and {bf16_two} on two (`{two}`, when \
         one of them made {f32_one} and {bf16_one})"
    );
    assert!(words("../../README.md").contains(&text), "no text {text}");
}

#[test]
fn the_readme_has_the_recorded_receptive_fields() {
    let readme = read("README.md");
    let fields = |name| record(name)["fields"].as_array().unwrap().clone();
    let sides = |field: &Value| -> Vec<(u64, String)> {
        let squares = field["squares"].as_array().unwrap().iter();
        squares
            .map(|square| {
                (square["side"].as_u64().unwrap(), format!("{:.1}", 100.0 * square["area"].as_f64().unwrap()))
            })
            .collect()
    };
    let layers = fields("erf-layers.json");
    assert_eq!(layers.len(), 6);
    for layer in &layers {
        let name = layer["name"].as_str().unwrap().replace(" L=", ", L=");
        let [(a, _), (b, _), (c, _), (d, area)] = sides(layer).try_into().unwrap();
        let row = format!("| {name} | {a} | {b} | {c} | {d} px, {area} % |");
        assert!(readme.contains(&row), "no row {row}");
    }
    let [(a, x), (b, y), (c, z), (d, w)] = sides(&fields("erf-model.json")[0]).try_into().unwrap();
    let text = format!("{a}, {b}, {c} and {d} pixels ({x}, {y}, {z} and {w} % of the area)");
    assert!(words("README.md").contains(&text), "no text {text}");
}
