//! What Burn's engine does between processes, and so why `train` has no flag for several machines: it sums once.
//!
//! Two processes on this machine, joined by the engine's coordinator over loopback, sum twice. With Burn 0.21 the second sum never
//! comes. When it does, this test fails, and gradients can be summed over machines.

use burn::backend::Flex;
use burn::collective::{
    AllReduceStrategy, CollectiveConfig, PeerId, ReduceOperation, all_reduce, register,
    start_global_orchestrator,
};
use burn::tensor::{Tensor, TensorPrimitive};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;
use std::{env, fmt, thread};

/// This test, which is also what its two other processes run.
const NAME: &str = "burns_engine_sums_once_between_processes";

/// Tells such a process its part: the ports of the coordinator and its own, and the strategy.
const PART: &str = "IMAGENET_TEST_NODE";

/// To register and for the first sum, which takes milliseconds.
const LONG: Duration = Duration::from_secs(30);

/// For the second sum: long enough for the other process to have had its first on a busy machine.
const SHORT: Duration = Duration::from_secs(3);

#[test]
fn burns_engine_sums_once_between_processes() {
    if let Ok(part) = env::var(PART) {
        return node(&part);
    }
    for strategy in ["centralized", "tree", "ring"] {
        let [coordinator, first, second] = free_ports();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(start_global_orchestrator(coordinator));
        });
        let nodes = [first, second].map(|own| {
            Command::new(env::current_exe().unwrap())
                .args([NAME, "--exact", "--nocapture"])
                .env(PART, format!("{coordinator} {own} {strategy} {}", if own == first { 1 } else { 10 }))
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        });
        for node in nodes {
            let output = node.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            let sums: Vec<_> = text.lines().filter(|line| line.starts_with("sum ")).collect();
            let expected = ["sum 1: [11.0, 22.0, 33.0]", "sum 2: none"];
            assert_eq!(sums, expected, "{strategy}: {}\n{text}", String::from_utf8_lossy(&output.stdout));
        }
    }
}

/// Ports that were free a moment ago.
fn free_ports<const N: usize>() -> [u16; N] {
    let listeners = [(); N].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    listeners.map(|listener| listener.local_addr().unwrap().port())
}

/// One of the processes: registers and sums `[1, 2, 3]` times its factor twice.
fn node(part: &str) {
    let part: Vec<_> = part.split(' ').map(str::to_string).collect();
    let [coordinator, own, strategy, factor] = &part[..] else { panic!("{part:?}") };
    let factor: f32 = factor.parse().unwrap();
    let strategy = match strategy.as_str() {
        "centralized" => AllReduceStrategy::Centralized,
        "tree" => AllReduceStrategy::Tree(2),
        "ring" => AllReduceStrategy::Ring,
        _ => panic!("{strategy}"),
    };
    let config = CollectiveConfig::default()
        .with_num_devices(1)
        .with_num_nodes(2)
        .with_global_address(format!("ws://127.0.0.1:{coordinator}").parse().unwrap())
        .with_node_address(format!("ws://127.0.0.1:{own}").parse().unwrap())
        .with_data_service_port(own.parse().unwrap())
        .with_global_all_reduce_strategy(strategy);
    let peer = PeerId::from(0_u32);
    let registered = within(LONG, move || register::<Flex>(peer, Default::default(), config));
    registered.expect("the coordinator answers").unwrap();
    for (number, limit) in [(1, LONG), (2, SHORT)] {
        let sum = within(limit, move || {
            let tensor =
                Tensor::<Flex, 1>::from_data([factor, 2.0 * factor, 3.0 * factor], &Default::default());
            let tensor = tensor.into_primitive().tensor();
            let sum = all_reduce::<Flex>(peer, tensor, ReduceOperation::Sum).unwrap();
            let sum = Tensor::<Flex, 1>::from_primitive(TensorPrimitive::Float(sum)).into_data();
            sum.iter::<f32>().collect::<Vec<_>>()
        });
        match sum {
            Some(sum) => say(number, format_args!("{sum:?}")),
            None => say(number, "none"),
        }
    }
}

fn say(number: usize, sum: impl fmt::Display) {
    eprintln!("sum {number}: {sum}");
}

/// What `work` comes to, unless it takes longer than `limit`; its thread is then left behind.
fn within<T: Send + 'static>(limit: Duration, work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = channel();
    thread::spawn(move || {
        // Whoever asked may have given up.
        let _ = sender.send(work());
    });
    receiver.recv_timeout(limit).ok()
}
