//! Times the bare kernels, without a tensor library around them, and checks what they compute in the same run.
//!
//! ```text
//! cargo run --release -p wtconv-kernels --features cuda --example bare -- [OPTION ...] [BxCxHxWxL ...]
//!
//!   --dtype f32|f16|bf16    storage of tensors and parameters (f32)
//!   --memory nchw|nhwc      order of the axes in memory (nchw)
//!   --kernel K              filter side (5)
//!   --windows M,H,W         forces windows of H x W with M levels
//!   --batch MS              milliseconds of launches between two synchronisations (20)
//!   --unchecked             skips the comparison with the oracle: for profilers
//!   --dry-run               launches once and checks nothing: for compilers without a device behind them
//! ```
//!
//! Without shapes the four stages of a ConvNeXt and three large planes run. Times are medians of five batches after warm-up,
//! in milliseconds; the copy moves the input once in and once out.

#[cfg(any(feature = "cuda", feature = "wgpu"))]
#[path = "../tests/support/mod.rs"]
mod support;

#[cfg(feature = "cuda")]
type Device = cubecl::cuda::CudaRuntime;
#[cfg(all(feature = "wgpu", not(feature = "cuda")))]
type Device = cubecl::wgpu::WgpuRuntime;

#[cfg(not(any(feature = "cuda", feature = "wgpu")))]
fn main() {
    eprintln!("build with one of the features cuda and wgpu");
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
fn main() {
    bench::main();
}

#[cfg(any(feature = "cuda", feature = "wgpu"))]
mod bench {
    use std::time::Instant;

    use cubecl::prelude::*;
    use cubecl::server::Handle;
    use wtconv_kernels::traffic::{filter_gradient_traffic, operator_traffic};
    use wtconv_kernels::{
        DeviceLimits, Dtype, Launcher, Operands, Parameters, Problem, Strategy, Strided, Tensor,
        plan_filter_gradient, plan_operator,
    };

    use super::Device;
    use super::support::{Random, client, download, round, upload};
    use wtconv_oracle::relative_error;

    struct Options {
        dtype: Dtype,
        channels_last: bool,
        kernel_size: usize,
        strategy: Strategy,
        batch_ms: f64,
        unchecked: bool,
        dry_run: bool,
        shapes: Vec<[usize; 5]>,
    }

    fn options() -> Options {
        let mut options = Options {
            dtype: Dtype::F32,
            channels_last: false,
            kernel_size: 5,
            strategy: Strategy::Auto,
            batch_ms: 20.0,
            unchecked: false,
            dry_run: false,
            shapes: Vec::new(),
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().unwrap_or_else(|| panic!("{argument} needs a value"));
            match argument.as_str() {
                "--dtype" => {
                    options.dtype = match value().as_str() {
                        "f32" => Dtype::F32,
                        "f16" => Dtype::F16,
                        "bf16" => Dtype::BF16,
                        other => panic!("unknown dtype {other}"),
                    }
                }
                "--memory" => options.channels_last = value() == "nhwc",
                "--kernel" => options.kernel_size = value().parse().expect("a filter side"),
                "--windows" => {
                    let numbers = numbers(&value(), ',');
                    let [levels, height, width] = numbers[..] else { panic!("--windows M,H,W") };
                    options.strategy = Strategy::Windows { levels, height, width };
                }
                "--batch" => options.batch_ms = value().parse().expect("milliseconds"),
                "--unchecked" => options.unchecked = true,
                "--dry-run" => options.dry_run = true,
                shape => {
                    let shape = numbers(shape, 'x');
                    options.shapes.push(shape.try_into().expect("a shape is BxCxHxWxL"));
                }
            }
        }
        if options.shapes.is_empty() {
            options.shapes = vec![
                [64, 96, 56, 56, 5],
                [64, 192, 28, 28, 4],
                [64, 384, 14, 14, 3],
                [64, 768, 7, 7, 2],
                [32, 64, 128, 128, 3],
                [16, 64, 224, 224, 3],
                [8, 64, 512, 512, 3],
            ];
        }
        options
    }

    fn numbers(text: &str, separator: char) -> Vec<usize> {
        text.split(separator).map(|part| part.parse().expect("a number")).collect()
    }

    /// Device copy of `quads` groups of four floats: the floor that the kernels are held against.
    #[cube(launch_unchecked)]
    fn copy(from: &Array<Vector<f32, Const<4>>>, to: &mut Array<Vector<f32, Const<4>>>, quads: usize) {
        let at =
            (CUBE_POS_X as usize + CUBE_POS_Y as usize * CUBE_COUNT_X as usize) * 256 + UNIT_POS as usize;
        if at < quads {
            to[at] = from[at];
        }
    }

    struct Bench {
        client: ComputeClient<Device>,
        options: Options,
    }

    impl Bench {
        /// Median milliseconds of a launch.
        fn time(&self, launch: impl Fn()) -> f64 {
            let sync = || cubecl::future::block_on(self.client.sync()).expect("the device answers");
            if self.options.dry_run {
                launch();
                sync();
                return f64::NAN;
            }
            let batch = |launches: usize| {
                let start = Instant::now();
                (0..launches).for_each(|_| launch());
                sync();
                start.elapsed().as_secs_f64() * 1e3 / launches as f64
            };
            // Waiting for the device takes a part of a millisecond: batches are long enough that it does not count.
            batch(3);
            let launches = (self.options.batch_ms / batch(10)).ceil().max(1.0) as usize;
            let mut rounds: Vec<f64> = (0..5).map(|_| batch(launches)).collect();
            rounds.sort_by(f64::total_cmp);
            rounds[2]
        }

        fn copy(&self, from: &Handle, to: &Handle) -> f64 {
            let quads = (from.size() / 16) as usize;
            let [x, y] =
                DeviceLimits::of(&self.client).cube_count(quads.div_ceil(256)).expect("a small launch");
            self.time(|| unsafe {
                // SAFETY: both buffers hold `quads` quads.
                copy::launch_unchecked::<Device>(
                    &self.client,
                    CubeCount::Static(x, y, 1),
                    CubeDim::new_1d(256),
                    ArrayArg::from_raw_parts(from.clone(), quads),
                    ArrayArg::from_raw_parts(to.clone(), quads),
                    quads,
                );
            })
        }

        fn shape(&self, shape: [usize; 5]) {
            let Options { dtype, kernel_size, strategy, unchecked, dry_run, channels_last, .. } =
                self.options;
            let [batch, channels, height, width, levels] = shape;
            let batch = if dry_run { batch.min(4) } else { batch };
            let problem = Problem { batch, channels, height, width, kernel_size, levels };
            let shape = [batch, channels, height, width];
            let strided =
                if channels_last { Strided::channels_last(shape) } else { Strided::contiguous(shape) };
            let count = problem.elements();
            let mut random = Random::new(7);
            // Large tensors repeat a block of random values, of a length that no plane or row divides.
            const BLOCK: usize = 1_000_003;
            let mut draw = |count: usize| -> Vec<f64> {
                let block: Vec<f64> = (0..count.min(BLOCK)).map(|_| round(random.real(), dtype)).collect();
                block.iter().copied().cycle().take(count).collect()
            };
            let (x, dy) = (draw(count), draw(count));
            let filters = draw(channels * problem.filters() * kernel_size * kernel_size);
            let (scales, bias) = (draw(channels * problem.filters()), draw(channels));
            let [x_handle, dy_handle, filters_handle, scales_handle, bias_handle] =
                [&x, &dy, &filters, &scales, &bias].map(|values| upload(&self.client, values, dtype));
            let out = upload(&self.client, &vec![f64::NAN; count], dtype);
            let tensor = |handle| Tensor { handle, shape, strided, dtype };
            let (x_tensor, dy_tensor, out_tensor) = (tensor(&x_handle), tensor(&dy_handle), tensor(&out));
            let parameters = Parameters {
                filters: &filters_handle,
                filter_strides: Parameters::contiguous_filters(kernel_size, levels),
                scales: Some(&scales_handle),
                scale_strides: Parameters::contiguous_scales(levels),
                bias: Some(&bias_handle),
                kernel_size,
                levels,
                dtype,
            };

            let limits = DeviceLimits::of(&self.client);
            let operands = Operands { x: strided, y: strided, dtype, parameter_dtype: dtype };
            let operator = plan_operator(&problem, &operands, false, &limits, strategy).expect("a plan");
            let gradient = plan_filter_gradient(&problem, &operands, &limits, strategy).expect("a plan");
            let layout = operator.kernel.layout;
            println!(
                "{batch}x{channels}x{height}x{width} L{levels} K{kernel_size} {dtype} {}: operator {} planes of {}x{}, {} threads, \
                 {} bytes, {} launches; gradient {} planes, {} threads, {} bytes, {} x {} windows, {} launches",
                if channels_last { "nhwc" } else { "nchw" },
                layout.planes,
                layout.height,
                layout.width,
                layout.threads,
                operator.kernel.shared_floats() * 4,
                operator.launches(),
                gradient.kernel.x.planes,
                gradient.kernel.x.threads,
                gradient.kernel.shared_floats() * 4,
                gradient.chunks,
                gradient.visits,
                gradient.launches(),
            );

            // Correctness first, on a few planes and channels.
            let taps = problem.filters() * kernel_size * kernel_size;
            let channel = |c: usize| wtconv_oracle::Parameters {
                filters: filters[c * taps..(c + 1) * taps].to_vec(),
                scales: scales[c * problem.filters()..(c + 1) * problem.filters()].to_vec(),
                bias: Some(vec![bias[c]]),
            };
            let images = |batch| wtconv_oracle::Problem {
                batch,
                channels: 1,
                height,
                width,
                kernel_size,
                levels,
                stride: 1,
            };
            let plane = |values: &[f64], b: usize, c: usize| -> Vec<f64> {
                let [sb, sc, sh, sw] = strided.strides;
                (0..height * width)
                    .map(|i| values[b * sb + c * sc + i / width * sh + i % width * sw])
                    .collect()
            };
            let of_channel = |values: &[f64], c: usize| -> Vec<f64> {
                (0..batch).flat_map(|b| plane(values, b, c)).collect()
            };
            let places =
                [(0, 0), (batch / 2, channels / 3), (batch - 1, channels - 1), (batch / 3, channels / 2)];
            let launcher = Launcher::new(&self.client).with_strategy(strategy);
            let run_forward = || launcher.forward_into(&x_tensor, &parameters, &out_tensor).expect("a plan");
            let run_input =
                || launcher.input_gradient_into(&dy_tensor, &parameters, &out_tensor).expect("a plan");
            let run_filters =
                || launcher.filter_gradient(&x_tensor, &dy_tensor, &parameters).expect("a plan");
            let mut errors = [f64::NAN; 3];
            if !unchecked && !dry_run {
                let (mut found, mut expected) = (Vec::new(), Vec::new());
                run_forward();
                let y = download(&self.client, &out, dtype);
                assert!(y.iter().all(|value| value.is_finite()), "an output was not written");
                for (b, c) in places {
                    found.extend(plane(&y, b, c));
                    expected.extend(wtconv_oracle::forward(&images(1), &plane(&x, b, c), &channel(c)));
                }
                errors[0] = relative_error(&found, &expected);
                found.clear();
                expected.clear();
                run_input();
                let dx = download(&self.client, &out, dtype);
                for (b, c) in places {
                    found.extend(plane(&dx, b, c));
                    let (x, dy) = (plane(&x, b, c), plane(&dy, b, c));
                    expected.extend(wtconv_oracle::backward(&images(1), &x, &channel(c), &dy).x);
                }
                errors[1] = relative_error(&found, &expected);
                found.clear();
                expected.clear();
                let gradients = run_filters();
                let dw = download(&self.client, &gradients.filters, dtype);
                let ds = download(&self.client, gradients.scales.as_ref().expect("scales"), dtype);
                let db = download(&self.client, &gradients.bias, dtype);
                for c in [0, channels - 1] {
                    let (x, dy) = (of_channel(&x, c), of_channel(&dy, c));
                    let sums = wtconv_oracle::backward(&images(batch), &x, &channel(c), &dy);
                    found.extend_from_slice(&dw[c * taps..(c + 1) * taps]);
                    found.extend_from_slice(&ds[c * problem.filters()..(c + 1) * problem.filters()]);
                    found.push(db[c]);
                    expected.extend([sums.filters, sums.scales, sums.bias.unwrap_or_default()].concat());
                }
                errors[2] = relative_error(&found, &expected);
            }

            let copied = self.copy(&x_handle, &out);
            let times = [
                self.time(run_forward),
                self.time(run_input),
                self.time(|| {
                    run_filters();
                }),
            ];
            let moved = [
                operator_traffic(&operator, &problem, dtype).bytes,
                operator_traffic(&operator, &problem, dtype).bytes,
                filter_gradient_traffic(&gradient, &problem, dtype).bytes,
            ];
            println!("  copy             {copied:.4} ms");
            for (i, name) in ["forward", "input gradient", "filter gradients"].into_iter().enumerate() {
                println!(
                    "  {name:16} {:.4} ms  {:5.2} x copy  {:6.1} GB/s  error {:.1e}",
                    times[i],
                    times[i] / copied,
                    moved[i] as f64 / times[i] / 1e6,
                    errors[i],
                );
            }
        }
    }

    pub fn main() {
        let bench = Bench { client: client(), options: options() };
        for shape in bench.options.shapes.clone() {
            bench.shape(shape);
        }
    }
}
