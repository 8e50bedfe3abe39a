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

/// The targets of a batch whose images were mixed with their counterparts from its other end: `lambda` of an image's own
/// smoothed label and `1 - lambda` of the other's, as timm's `mixup_target`.
///
/// A smoothed label is `smoothing / classes` everywhere, and `1 - smoothing` more on the label.
///
/// # Shapes
///
/// - labels: `[batch]`
/// - output: `[batch, classes]`, each row with the sum 1
pub fn mixed_targets<B: Backend>(
    labels: Tensor<B, 1, Int>,
    classes: usize,
    lambda: f64,
    smoothing: f64,
) -> Tensor<B, 2> {
    let own: Tensor<B, 2> = labels.one_hot(classes).float();
    let other = own.clone().flip([0]);
    (own * lambda + other * (1.0 - lambda)) * (1.0 - smoothing) + smoothing / classes as f64
}

/// Cross-entropy with any distribution as the target.
///
/// # Shapes
///
/// - logits, targets: `[batch, classes]`
/// - output: `[batch]`
pub fn soft_cross_entropy<B: Backend>(logits: Tensor<B, 2>, targets: Tensor<B, 2>) -> Tensor<B, 1> {
    let [batch, _] = logits.dims();
    -(log_softmax(logits, 1) * targets).sum_dim(1).reshape([batch])
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

    #[test]
    fn mixed_targets_by_hand() {
        let labels = Tensor::<TestBackend, 1, Int>::from_data([0, 3, 1], &Default::default());
        let rows: Vec<f32> = mixed_targets(labels, 4, 0.75, 0.2).into_data().iter::<f32>().collect();
        // 0.05 everywhere; 0.8 * 0.75 = 0.6 and 0.8 * 0.25 = 0.2 on the labels; the middle is its own counterpart.
        let expected = [0.65, 0.25, 0.05, 0.05, 0.05, 0.05, 0.05, 0.85, 0.25, 0.65, 0.05, 0.05];
        assert_eq!(rows.len(), expected.len());
        for (value, expected) in rows.iter().zip(expected) {
            assert!((value - expected).abs() < 1e-6, "{rows:?}");
        }
    }

    #[test]
    fn soft_losses_by_hand() {
        let device = Default::default();
        // Probabilities (1/2, 1/4, 1/4) and (1/8, 1/8, 3/4).
        let logits = Tensor::<TestBackend, 2>::from_data(
            [[2.0_f32.ln(), 0.0, 0.0], [0.0, 0.0, 6.0_f32.ln()]],
            &device,
        );
        let targets = Tensor::from_data([[0.25, 0.75, 0.0], [0.5, 0.0, 0.5]], &device);
        let soft: Vec<f64> = soft_cross_entropy(logits.clone(), targets).into_data().iter::<f64>().collect();
        assert_close(
            &soft,
            [0.25 * 2.0_f64.ln() + 0.75 * 4.0_f64.ln(), 0.5 * 8.0_f64.ln() + 0.5 * (4.0_f64 / 3.0).ln()],
        );
        // An unmixed batch has the loss of its labels.
        let labels = Tensor::from_data([1, 2], &device);
        let unmixed: Vec<f64> = soft_cross_entropy(logits, mixed_targets(labels, 3, 1.0, 0.3))
            .into_data()
            .iter::<f64>()
            .collect();
        assert_close(&unmixed, losses(0.3).try_into().unwrap());
    }
}
