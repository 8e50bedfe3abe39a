//! A call that falls back to tensor ops says so through `log`, once for each reason.
//!
//! One test in a process of its own: the logger is the process's.
#![cfg(feature = "flex")]

use std::sync::Mutex;

use burn::backend::Flex;
use burn::tensor::Tensor;
use burn_wtconv::{RouteKind, WtConv2dConfig};
use log::{LevelFilter, Log, Metadata, Record};

struct Collect(Mutex<Vec<String>>);

impl Log for Collect {
    fn enabled(&self, _: &Metadata) -> bool {
        true
    }

    fn log(&self, record: &Record) {
        self.0.lock().expect("no test panics in the logger").push(record.args().to_string());
    }

    fn flush(&self) {}
}

static LOG: Collect = Collect(Mutex::new(Vec::new()));

#[test]
fn the_reason_is_logged_once_and_not_for_a_forced_route() {
    log::set_logger(&LOG).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let device = Default::default();
    let layer = WtConv2dConfig::new(2).init::<Flex>(&device);
    let x = Tensor::ones([1, 2, 5, 5], &device);
    let logged = || {
        let records = LOG.0.lock().expect("no test panics in the logger");
        records.iter().filter(|record| record.contains("wavelet")).cloned().collect::<Vec<_>>()
    };

    layer.try_forward(x.clone(), Some(RouteKind::TensorOps)).expect("tensor ops");
    assert!(logged().is_empty());
    for _ in 0..3 {
        layer.forward(x.clone());
    }
    assert_eq!(logged(), ["wavelet convolution through tensor ops: the backend flex has no fused kernels"]);
}
