//! Cross-entropy, one value a sample.

use burn::tensor::activation::log_softmax;
use burn::tensor::backend::Backend;
use burn::tensor::{Int, Tensor};

/// Cross-entropy with smoothed labels, as PyTorch's `label_smoothing`: the target is `1 - smoothing` on the label plus
/// `smoothing / classes` everywhere.
///
/// Burn's `CrossEntropyLoss` is not used because it returns the mean over the batch only, and an accumulated mean needs the
/// sum.
///
/// # Shapes
///
/// - logits: `[batch, classes]`
/// - labels: `[batch]`
/// - output: `[batch]`
pub fn cross_entropy<B: Backend>(
    logits: Tensor<B, 2>,
    labels: Tensor<B, 1, Int>,
    smoothing: f64,
) -> Tensor<B, 1> {
    let [batch, _] = logits.dims();
    let log_probability = log_softmax(logits, 1);
    let of_label = log_probability.clone().gather(1, labels.reshape([batch, 1]));
    let loss = if smoothing > 0.0 {
        of_label * (1.0 - smoothing) + log_probability.mean_dim(1) * smoothing
    } else {
        of_label
    };
    -loss.reshape([batch])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TestBackend;

    fn losses(smoothing: f64) -> Vec<f64> {
        // Probabilities (1/2, 1/4, 1/4) and (1/8, 1/8, 3/4).
        let logits = [[2.0_f32.ln(), 0.0, 0.0], [0.0, 0.0, 6.0_f32.ln()]];
        let device = Default::default();
        let logits = Tensor::<TestBackend, 2>::from_data(logits, &device);
        let labels = Tensor::from_data([1, 2], &device);
        cross_entropy(logits, labels, smoothing).into_data().iter::<f64>().collect()
    }

    #[track_caller]
    fn assert_close(values: &[f64], expected: [f64; 2]) {
        for (value, expected) in values.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-6, "{value} is not {expected}");
        }
    }

    #[test]
    fn losses_by_hand() {
        assert_close(&losses(0.0), [4.0_f64.ln(), (4.0_f64 / 3.0).ln()]);
        // 0.7 of the above + 0.3 * the mean over classes.
        let means =
            [(2.0_f64.ln() + 2.0 * 4.0_f64.ln()) / 3.0, (2.0 * 8.0_f64.ln() + (4.0_f64 / 3.0).ln()) / 3.0];
        assert_close(
            &losses(0.3),
            [0.7 * 4.0_f64.ln() + 0.3 * means[0], 0.7 * (4.0_f64 / 3.0).ln() + 0.3 * means[1]],
        );
    }
}
