//! The kernels on cuda.
#![cfg(feature = "cuda")]

#[path = "device_suite/filter_gradient.rs"]
mod filter_gradient;
#[path = "device_suite/operator.rs"]
mod operator;
mod support;

type Device = cubecl::cuda::CudaRuntime;

/// Tensors of more elements than 31 and 32 bits can count, against a batch of one.
mod large {
    use wtconv_kernels::{Dtype, Launcher, Operands, Parameters, Problem, Strided, Tensor, plan_operator};
    use wtconv_oracle::relative_error;

    use super::support::{Random, client, download, upload};

    const PLANE: usize = 64 * 256 * 256;

    /// The input is one image, expanded; the output is as large as it says, and then the input of the filter gradients.
    fn check(batch: usize, wide: bool) {
        let problem = Problem { batch, channels: 64, height: 256, width: 256, kernel_size: 3, levels: 2 };
        let client = client();
        let mut random = Random::new(5);
        let mut draw = |count: usize| -> Vec<f64> { (0..count).map(|_| random.real()).collect() };
        let [image, filters, scales] =
            [PLANE, 64 * 9 * 9, 64 * 9].map(|count| upload(&client, &draw(count), Dtype::F32));
        let parameters = Parameters {
            filters: &filters,
            filter_strides: Parameters::contiguous_filters(3, 2),
            scales: Some(&scales),
            scale_strides: Parameters::contiguous_scales(2),
            bias: None,
            kernel_size: 3,
            levels: 2,
            dtype: Dtype::F32,
        };
        let one = [1, 64, 256, 256];
        let many = [batch, 64, 256, 256];
        let single =
            |handle| Tensor { handle, shape: one, strided: Strided::contiguous(one), dtype: Dtype::F32 };
        let mut expanded = Strided::contiguous(many);
        expanded.strides[0] = 0;
        let repeated = |handle| Tensor { handle, shape: many, strided: expanded, dtype: Dtype::F32 };
        let launcher = Launcher::new(&client);

        let operands = Operands {
            x: expanded,
            y: Strided::contiguous(many),
            dtype: Dtype::F32,
            parameter_dtype: Dtype::F32,
        };
        let plan =
            plan_operator(&problem, &operands, false, &launcher.limits, launcher.strategy).expect("a plan");
        assert_eq!(plan.wide_indices, wide);

        let expected = launcher.forward(&single(&image), &parameters).expect("a plan");
        let large = launcher.forward(&repeated(&image), &parameters).expect("a plan");
        let expected_y = download(&client, &expected.handle, Dtype::F32);
        let bytes = 4 * PLANE as u64;
        for index in [0, batch / 2, batch - 1] {
            let first = bytes * index as u64;
            let last = bytes * (batch - index - 1) as u64;
            let part = large.handle.clone().offset_start(first).offset_end(last);
            assert_eq!(download(&client, &part, Dtype::F32), expected_y, "image {index}");
        }

        // The output again as the input, and as the cotangent.
        let y = Tensor { handle: &large.handle, shape: many, strided: large.strided, dtype: Dtype::F32 };
        let dx = launcher.input_gradient(&y, &parameters).expect("a plan");
        let expected_dx = launcher.input_gradient(&single(&expected.handle), &parameters).expect("a plan");
        let part = dx.handle.clone().offset_start(bytes * (batch - 1) as u64);
        assert_eq!(download(&client, &part, Dtype::F32), download(&client, &expected_dx.handle, Dtype::F32));
        drop(dx);

        let gradients = launcher.filter_gradient(&y, &repeated(&image), &parameters).expect("a plan");
        let single_gradients = launcher
            .filter_gradient(&single(&expected.handle), &single(&image), &parameters)
            .expect("a plan");
        let found = download(&client, &gradients.filters, Dtype::F32);
        let expected: Vec<f64> = download(&client, &single_gradients.filters, Dtype::F32)
            .into_iter()
            .map(|value| value * batch as f64)
            .collect();
        let error = relative_error(&found, &expected);
        assert!(error < 1e-5, "{error:e}");
    }

    #[test]
    #[ignore = "takes 18 GB of device memory"]
    fn more_than_31_bits() {
        check((1 << 31) / PLANE + 1, false);
    }

    #[test]
    #[ignore = "takes 35 GB of device memory"]
    fn more_than_32_bits() {
        check((1 << 32) / PLANE + 1, true);
    }
}
