//! From a folder of images to batches of tensors.
//!
//! ```text
//! ImageFolder (Dataset) --order--> EpochPlan --loader threads--> Samples --ImageBatcher--> ImageBatch
//!    folder.rs                      plan.rs    decode.rs, augment/,         batch.rs
//!                                              loader.rs
//! ```
//!
//! Everything random here is a pure function of (seed, epoch, position of the file) or, where whole batches are mixed, of
//! (seed, epoch, number of the batch), so the batches of an update do not depend on the number of worker threads, nor on what
//! ran before.

pub mod augment;
pub mod batch;
pub mod decode;
pub mod folder;
pub mod loader;
pub mod plan;

use rand::SeedableRng;
use rand::rngs::StdRng;

/// What a random stream is used for, so that two uses with the same numbers never share a stream.
#[derive(Clone, Copy, Debug)]
pub enum Stream {
    /// The order of the images of an epoch.
    Order,
    /// The augmentation of one image in one epoch.
    Augment,
    /// The backend's own generator (stochastic depth, dropout) during one update.
    Update,
    /// The initial parameters.
    Init,
    /// Mixup and CutMix of one batch in one epoch.
    Mix,
}

/// The random stream of `use_` at `(a, b)`, for example (epoch, image).
///
/// The four numbers are the generator's key as they are, so no two streams of a run collide.
pub fn stream(seed: u64, use_: Stream, a: u64, b: u64) -> StdRng {
    let mut key = [0_u8; 32];
    for (bytes, number) in key.chunks_exact_mut(8).zip([seed, use_ as u64, a, b]) {
        bytes.copy_from_slice(&number.to_le_bytes());
    }
    StdRng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt;

    #[test]
    fn streams_repeat_and_differ() {
        let draw = |seed, use_, a, b| stream(seed, use_, a, b).random::<u64>();
        assert_eq!(draw(1, Stream::Order, 2, 3), draw(1, Stream::Order, 2, 3));
        let all = [
            draw(1, Stream::Order, 2, 3),
            draw(2, Stream::Order, 2, 3),
            draw(1, Stream::Augment, 2, 3),
            draw(1, Stream::Order, 3, 3),
            draw(1, Stream::Order, 2, 4),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "stream {i} repeats");
        }
    }
}
