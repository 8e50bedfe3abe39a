//! Devices enter Burn's engine together, or none does.
//!
//! A call of `register` returns when every device has made it, and cannot be taken back. So each device has a thread for it, none
//! calls before all threads are there, and the trainer waits for their reports only. Without the gate, one thread that the system
//! refuses would leave the others in the engine for ever.
//!
//! Threads of a start that was given up end by themselves where the gate is closed. Those that the engine does not answer stay in it,
//! until it answers or the process ends, and hold nothing but their number; the engine forgets that number when the next run begins.

use burn::collective::{self, CollectiveConfig, PeerId};
use burn::tensor::backend::Backend;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[cfg(test)]
use super::fault;
use super::{DeviceError, panic_message, spawn};

/// How long the trainer waits for the engine to start, for the threads of all devices, and for the engine again: no device computes
/// anything for it.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What the thread of the device of that rank reports twice: at the gate, and when the engine has all devices. Or why that cannot be.
type Report = (usize, Result<(), String>);

/// Registers `devices`, which come with their indices as in `--devices`, under the numbers `peers`. `config` is that of all.
///
/// # Errors
///
/// [`DeviceError::Failed`] if there is no thread for a device, or the engine refuses one; [`DeviceError::Silent`] for a device that is not
/// at the gate in time, and [`DeviceError::Registration`] if the engine does not answer. If there can be no engine, the first device has
/// failed.
pub(super) fn register<B: Backend>(
    devices: &[(usize, B::Device)],
    peers: &[PeerId],
    config: &CollectiveConfig,
    patience: Duration,
) -> Result<(), DeviceError> {
    let failed = |rank: usize, reason| DeviceError::Failed { device: devices[rank].0, reason };
    let late = DeviceError::Registration { waited: patience };
    let (reporter, reports) = channel();
    spawn(0, "engine".to_string(), engine::<B>(reporter)).map_err(|error| failed(0, error.to_string()))?;
    for _before_and_after in 0..2 {
        if missing(&reports, BTreeSet::from([0]), patience, failed)?.is_some() {
            return Err(late);
        }
    }

    let (reporter, reports) = channel();
    let mut gates = Vec::new();
    for (rank, ((index, device), peer)) in devices.iter().zip(peers).enumerate() {
        let (open, gate) = channel();
        gates.push(open);
        let (peer, device, config, reporter) = (*peer, device.clone(), config.clone(), reporter.clone());
        let enter = reporting(rank, reporter, move |reporter| {
            enter::<B>(rank, peer, device, config, &gate, reporter)
        });
        spawn(rank, format!("register-{index}"), enter).map_err(|error| failed(rank, error.to_string()))?;
    }

    let all: BTreeSet<usize> = (0..devices.len()).collect();
    if let Some(rank) = missing(&reports, all.clone(), patience, failed)? {
        return Err(DeviceError::Silent { device: devices[rank].0, waited: patience });
    }
    for gate in &gates {
        // A thread that has gone since has reported why.
        let _ = gate.send(());
    }
    match missing(&reports, all, patience, failed)? {
        // The engine answers all or none.
        Some(_) => Err(late),
        None => Ok(()),
    }
}

/// What a thread does that starts the engine, where it is the first run of the process, or else lets it forget the devices of the run
/// before, which may have failed. It reports before and after.
///
/// Where the system has no threads for the engine, that panics, and may never come back from it: it waits for those of its threads that
/// are there.
fn engine<B: Backend>(reporter: Sender<Report>) -> impl FnOnce() + Send + 'static {
    reporting(0, reporter, |reporter| {
        #[cfg(test)]
        fault::strike(0, fault::Place::Engine);
        reporter.send((0, Ok(()))).ok()?;
        collective::reset_collective::<B>();
        Some(Ok(()))
    })
}

/// `work` with its result, or its panic, as the last report. `None` if it was not waited for.
fn reporting(
    rank: usize,
    reporter: Sender<Report>,
    work: impl FnOnce(&Sender<Report>) -> Option<Result<(), String>> + Send + 'static,
) -> impl FnOnce() + Send + 'static {
    move || {
        let result = match catch_unwind(AssertUnwindSafe(|| work(&reporter))) {
            Ok(None) => return,
            Ok(Some(result)) => result,
            Err(panic) => Err(panic_message(&*panic)),
        };
        // The trainer may have given up.
        let _ = reporter.send((rank, result));
    }
}

/// What a device's thread does.
fn enter<B: Backend>(
    rank: usize,
    peer: PeerId,
    device: B::Device,
    config: CollectiveConfig,
    gate: &Receiver<()>,
    reporter: &Sender<Report>,
) -> Option<Result<(), String>> {
    #[cfg(test)]
    fault::strike(rank, fault::Place::Register);
    reporter.send((rank, Ok(()))).ok()?;
    gate.recv().ok()?;
    Some(collective::register::<B>(peer, device, config).map_err(|error| format!("{error:?}")))
}

/// Takes one report of each thread of `waiting`. The first that has not come within `patience`, if one has not.
fn missing(
    reports: &Receiver<Report>,
    mut waiting: BTreeSet<usize>,
    patience: Duration,
    failed: impl Fn(usize, String) -> DeviceError,
) -> Result<Option<usize>, DeviceError> {
    let deadline = Instant::now() + patience;
    while let Some(first) = waiting.first().copied() {
        match reports.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok((rank, Ok(()))) => waiting.remove(&rank),
            Ok((rank, Err(reason))) => return Err(failed(rank, reason)),
            Err(_) => return Ok(Some(first)),
        };
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::super::fault::{self, Kind, Place};
    use super::super::{all_reduce, one_group};
    use super::*;
    use crate::TestAutodiff;
    use burn::tensor::Tensor;
    use std::thread;

    const SHORT: Duration = Duration::from_millis(500);

    /// Registers as many devices as there are `indices` under numbers from `first` on, in a group of `group`.
    fn enter_group(
        indices: &[usize],
        first: u32,
        group: usize,
        patience: Duration,
    ) -> Result<Vec<PeerId>, DeviceError> {
        let devices: Vec<_> = indices.iter().map(|index| (*index, Default::default())).collect();
        let peers: Vec<_> = (first..).map(PeerId::from).take(indices.len()).collect();
        let config = CollectiveConfig::default().with_num_devices(group);
        register::<crate::TestBackend>(&devices, &peers, &config, patience).map(|()| peers)
    }

    /// The sum of a one of each peer, as each has it in time.
    fn sums(peers: &[PeerId]) -> Vec<f32> {
        let (sender, sums) = channel();
        for peer in peers.iter().copied() {
            let sender = sender.clone();
            thread::spawn(move || {
                let sum = all_reduce::<TestAutodiff>(peer, Tensor::ones([1], &Default::default()));
                let _ = sender.send(sum.unwrap().into_scalar());
            });
        }
        peers.iter().map_while(|_| sums.recv_timeout(Duration::from_secs(10)).ok()).collect()
    }

    #[test]
    fn a_device_that_cannot_be_registered_is_named_and_holds_nobody_up() {
        let _one_group = one_group();
        for (kind, place, reason) in [
            (Kind::NoThread, Place::Thread, "operation would block"),
            (Kind::Death, Place::Register, "struck at Register"),
        ] {
            let _fault = fault::plan(kind, 2, place, 0);
            let started = Instant::now();
            let error = enter_group(&[4, 7, 5], 1_000, 3, PATIENCE).unwrap_err().to_string();
            assert!(error.starts_with(&format!("device 5 failed: {reason};")), "{error}");
            assert!(started.elapsed() < PATIENCE / 2);
        }
        let peers = enter_group(&[0, 1], 1_010, 2, PATIENCE).unwrap();
        assert_eq!(sums(&peers), [2.0, 2.0]);
    }

    #[test]
    fn a_silent_device_is_named_and_takes_no_part_in_a_later_run() {
        let _one_group = one_group();
        let planned = fault::plan(Kind::Silence, 2, Place::Register, 0);
        // The configuration of the next run, so that the engine would take it.
        let error = enter_group(&[4, 7, 5], 2_000, 2, SHORT).unwrap_err();
        assert!(matches!(error, DeviceError::Silent { device: 5, waited: SHORT }), "{error}");
        // It wakes up when the next run has begun.
        let peers = enter_group(&[0, 1], 2_010, 2, PATIENCE).unwrap();
        drop(planned);
        thread::sleep(Duration::from_millis(100));
        assert_eq!(sums(&peers), [2.0, 2.0]);
    }

    #[test]
    fn an_engine_that_does_not_start_is_not_waited_for_in_vain() {
        let _one_group = one_group();
        let planned = fault::plan(Kind::Death, 0, Place::Engine, 0);
        let error = enter_group(&[4, 7], 5_000, 2, PATIENCE).unwrap_err().to_string();
        assert!(error.starts_with("device 4 failed: struck at Engine;"), "{error}");
        drop(planned);
        let planned = fault::plan(Kind::Silence, 0, Place::Engine, 0);
        let error = enter_group(&[4, 7], 5_000, 2, SHORT).unwrap_err();
        assert!(matches!(error, DeviceError::Registration { waited: SHORT }), "{error}");
        drop(planned);
        let peers = enter_group(&[0, 1], 5_010, 2, PATIENCE).unwrap();
        assert_eq!(sums(&peers), [2.0, 2.0]);
    }

    #[test]
    fn an_engine_that_does_not_answer_is_left_behind() {
        let _one_group = one_group();
        // It waits for a third device.
        let error = enter_group(&[4, 7], 3_000, 3, SHORT).unwrap_err();
        assert!(matches!(error, DeviceError::Registration { waited: SHORT }), "{error}");
        assert!(error.to_string().contains("within 0.5 s"), "{error}");
        let peers = enter_group(&[0, 1], 3_010, 2, PATIENCE).unwrap();
        assert_eq!(sums(&peers), [2.0, 2.0]);
    }

    #[test]
    fn nobody_enters_where_the_gate_is_closed() {
        let _one_group = one_group();
        let (reporter, reports) = channel();
        let (open, gate) = channel();
        drop(open);
        let (ended, end) = channel();
        thread::spawn(move || {
            let config = CollectiveConfig::default().with_num_devices(2);
            let peer = PeerId::from(4_000);
            let entered = enter::<crate::TestBackend>(0, peer, Default::default(), config, &gate, &reporter);
            let _ = ended.send(entered);
        });
        assert_eq!(end.recv_timeout(Duration::from_secs(10)), Ok(None));
        assert_eq!(reports.iter().collect::<Vec<_>>(), [(0, Ok(()))]);
    }
}
