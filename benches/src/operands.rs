//! The tensors of a measurement, and the calls that are timed on them.

use anyhow::anyhow;
use burn::backend::Autodiff;
use burn::module::Param;
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::module::conv2d;
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Distribution, Tensor};
use burn_wtconv::{DepthwiseConv2d, RouteKind, WtConv2d, WtConvBackend, reference};

use crate::cases::{Case, Dtype, Layout, Pass, Route, Shape};
use crate::cotangent;
use crate::measure::Work;

/// The input and the gradient of the output, which all routes share.
#[derive(Clone, Debug)]
pub(crate) struct Input<B: Backend> {
    pub(crate) x: Tensor<B, 4>,
    pub(crate) dy: Tensor<B, 4>,
}

impl<B: Backend> Input<B> {
    pub(crate) fn random(shape: Shape, dtype: Dtype, layout: Layout, device: &B::Device) -> Self {
        let [batch, channels, height, width] = shape.0;
        let draw = || match layout {
            Layout::Nchw => random(shape.0, dtype, device),
            Layout::Nhwc => random([batch, height, width, channels], dtype, device).permute([0, 3, 1, 2]),
        };
        Self { x: draw(), dy: draw() }
    }
}

/// The parameters of the layer; without levels, a depthwise convolution's too.
#[derive(Clone, Debug)]
pub(crate) struct Parameters<B: Backend> {
    /// `[channels, 1 + 4 * levels, kernel_size, kernel_size]`
    pub(crate) filters: Tensor<B, 4>,
    /// `[channels, 1 + 4 * levels]`
    pub(crate) scales: Tensor<B, 2>,
    /// `[channels]`
    pub(crate) bias: Tensor<B, 1>,
}

impl<B: Backend> Parameters<B> {
    pub(crate) fn random(case: &Case, dtype: Dtype, device: &B::Device) -> Self {
        let Case { shape, levels, kernel_size } = *case;
        let (channels, bands) = (shape.0[1], 1 + 4 * levels);
        Self {
            filters: random([channels, bands, kernel_size, kernel_size], dtype, device),
            // A convolution has no scale.
            scales: match levels {
                0 => Tensor::<B, 2>::ones([channels, 1], device).cast(dtype.of_tensors()),
                _ => random([channels, bands], dtype, device),
            },
            bias: random([channels], dtype, device),
        }
    }
}

/// Uniform in -1..1.
fn random<B: Backend, const D: usize>(shape: [usize; D], dtype: Dtype, device: &B::Device) -> Tensor<B, D> {
    Tensor::<B, D>::random(shape, Distribution::Uniform(-1.0, 1.0), device).cast(dtype.of_tensors())
}

/// A layer with its parameters in place.
enum Operator<B: Backend> {
    Layer(Box<WtConv2d<B>>, RouteKind),
    Depthwise(Box<DepthwiseConv2d<B>>),
    Conv2d { weight: Tensor<B, 4>, bias: Tensor<B, 1> },
    Reference { weight: Tensor<B, 4>, bias: Tensor<B, 1> },
}

impl<B: WtConvBackend> Operator<B> {
    fn new(route: Route, Parameters { filters, scales, bias }: Parameters<B>) -> Self {
        let forced = match route {
            Route::Conv2d(_) => return Self::Conv2d { weight: filters, bias },
            Route::Reference(_) => return Self::Reference { weight: filters, bias },
            Route::Depthwise(_) => {
                return Self::Depthwise(Box::new(DepthwiseConv2d {
                    weight: Param::from_tensor(filters),
                    bias: Some(Param::from_tensor(bias)),
                    stride: 1,
                }));
            }
            Route::Fused => RouteKind::Fused,
            Route::TensorOps => RouteKind::TensorOps,
        };
        let layer = WtConv2d {
            filters: Param::from_tensor(filters),
            scales: Param::from_tensor(scales),
            bias: Some(Param::from_tensor(bias)),
            stride: 1,
        };
        Self::Layer(Box::new(layer), forced)
    }

    fn forward(&self, x: Tensor<B, 4>) -> anyhow::Result<Tensor<B, 4>> {
        match self {
            Self::Layer(layer, forced) => Ok(layer.try_forward(x, Some(*forced))?),
            Self::Depthwise(layer) => Ok(layer.forward(x)),
            Self::Conv2d { weight, bias } => {
                let [channels, _, side, _] = weight.dims();
                let options = ConvOptions::new([1, 1], [side / 2; 2], [1, 1], channels);
                Ok(conv2d(x, weight.clone(), Some(bias.clone()), options))
            }
            Self::Reference { weight, bias } => {
                Ok(reference::depthwise_conv2d(x, weight.clone(), Some(bias.clone()), 1))
            }
        }
    }
}

impl<B: AutodiffBackend> Operator<B> {
    /// Takes the gradients of the parameters; there are none of the scales of a convolution.
    fn take_gradients(&self, gradients: &mut B::Gradients) -> Option<ParameterGradients<B::InnerBackend>> {
        match self {
            Self::Layer(layer, _) => Some(ParameterGradients {
                filters: layer.filters.val().grad_remove(gradients)?,
                scales: Some(layer.scales.val().grad_remove(gradients)?),
                bias: layer.bias.as_ref()?.val().grad_remove(gradients)?,
            }),
            Self::Depthwise(layer) => Some(ParameterGradients {
                filters: layer.weight.val().grad_remove(gradients)?,
                scales: None,
                bias: layer.bias.as_ref()?.val().grad_remove(gradients)?,
            }),
            Self::Conv2d { weight, bias } | Self::Reference { weight, bias } => Some(ParameterGradients {
                filters: weight.grad_remove(gradients)?,
                scales: None,
                bias: bias.grad_remove(gradients)?,
            }),
        }
    }
}

struct ParameterGradients<B: Backend> {
    filters: Tensor<B, 4>,
    scales: Option<Tensor<B, 2>>,
    bias: Tensor<B, 1>,
}

/// What a call computes; a part is `None` if its pass does not compute it.
pub(crate) struct Outcome<B: Backend> {
    pub(crate) y: Option<Tensor<B, 4>>,
    pub(crate) dx: Option<Tensor<B, 4>>,
    pub(crate) filters: Option<Tensor<B, 4>>,
    pub(crate) scales: Option<Tensor<B, 2>>,
    pub(crate) bias: Option<Tensor<B, 1>>,
}

/// One pass of one route, ready to run as users run it: the layer's `forward` on the plain backend, or under `Autodiff`
/// with the input and every parameter tracked and all their gradients taken.
pub(crate) struct Call<B: WtConvBackend> {
    pass: Pass,
    plain: Operator<B>,
    tracked: Operator<Autodiff<B>>,
    input: Input<B>,
    leaf: Tensor<Autodiff<B>, 4>,
    /// The value of the loss.
    constant: Tensor<B, 1>,
    /// Forwards done for backward passes to come.
    losses: Vec<Tensor<Autodiff<B>, 1>>,
}

impl<B: WtConvBackend> Call<B> {
    pub(crate) fn new(route: Route, pass: Pass, input: &Input<B>, parameters: &Parameters<B>) -> Self {
        let Parameters { filters, scales, bias } = parameters.clone();
        // Leaves of the graph: `Param::from_tensor` tracks a layer's, a convolution's are tracked here.
        let tracked = Parameters::<Autodiff<B>> {
            filters: Tensor::from_inner(filters).require_grad(),
            scales: Tensor::from_inner(scales).require_grad(),
            bias: Tensor::from_inner(bias).require_grad(),
        };
        Self {
            pass,
            plain: Operator::new(route, parameters.clone()),
            tracked: Operator::new(route, tracked),
            input: input.clone(),
            leaf: Tensor::from_inner(input.x.clone()).require_grad(),
            constant: Tensor::zeros([1], (&input.x.device(), input.x.dtype())),
            losses: Vec::new(),
        }
    }

    /// Why the route does not take the call, if it does not.
    pub(crate) fn refusal(&self) -> Option<String> {
        match &self.plain {
            Operator::Layer(layer, RouteKind::Fused) => match layer.route(&self.input.x) {
                burn_wtconv::Route::TensorOps { reason } => Some(reason),
                burn_wtconv::Route::Fused { .. } => None,
            },
            _ => None,
        }
    }

    /// Runs once and keeps what comes out.
    pub(crate) fn outcome(&self) -> anyhow::Result<Outcome<B>> {
        if self.pass == Pass::Forward {
            let y = self.plain.forward(self.input.x.clone())?;
            return Ok(Outcome { y: Some(y), dx: None, filters: None, scales: None, bias: None });
        }
        let y = self.tracked.forward(self.leaf.clone())?;
        let loss = cotangent::loss(y.clone(), self.input.dy.clone(), self.constant.clone());
        let (dx, ParameterGradients { filters, scales, bias }) = self.backward(loss)?;
        let y = (self.pass == Pass::Train).then(|| y.inner());
        Ok(Outcome { y, dx: Some(dx), filters: Some(filters), scales, bias: Some(bias) })
    }

    fn loss(&self) -> anyhow::Result<Tensor<Autodiff<B>, 1>> {
        let y = self.tracked.forward(self.leaf.clone())?;
        Ok(cotangent::loss(y, self.input.dy.clone(), self.constant.clone()))
    }

    fn backward(
        &self,
        loss: Tensor<Autodiff<B>, 1>,
    ) -> anyhow::Result<(Tensor<B, 4>, ParameterGradients<B>)> {
        let mut gradients = loss.backward();
        let dx = self.leaf.grad_remove(&mut gradients);
        dx.zip(self.tracked.take_gradients(&mut gradients)).ok_or_else(|| anyhow!("a gradient is missing"))
    }
}

impl<B: WtConvBackend> Work for Call<B> {
    fn prepare(&mut self, calls: usize) -> anyhow::Result<()> {
        if self.pass == Pass::Backward {
            for _ in 0..calls {
                self.losses.push(self.loss()?);
            }
        }
        Ok(())
    }

    fn call(&mut self) -> anyhow::Result<()> {
        match self.pass {
            Pass::Forward => drop(self.plain.forward(self.input.x.clone())?),
            Pass::Backward => {
                let loss = self.losses.pop().ok_or_else(|| anyhow!("no forward was prepared"))?;
                drop(self.backward(loss)?);
            }
            Pass::Train => drop(self.backward(self.loss()?)?),
        }
        Ok(())
    }

    fn sync(&self) -> anyhow::Result<()> {
        B::sync(&self.input.x.device()).map_err(|error| anyhow!("the device failed: {error}"))
    }
}
