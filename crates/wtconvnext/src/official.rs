//! The weights of the authors' PyTorch code, whose models are built on timm's ConvNeXt and share its names.
//!
//! Plain ConvNeXts take timm's names, `stages.0.blocks.0.conv_dw.weight` and so on. In both, PyTorch's linear weights
//! are `[out, in]` and Burn's `[in, out]`; everything else has the same layout.

mod error;
mod export;
mod file;
mod haar;
mod import;
mod keys;
mod pickle;
mod pytorch;

pub use burn_wtconv::official::{OfficialError, OfficialScheme};
pub use error::{ExportError, ImportError, ShapeMismatch};
pub use export::save_official;
pub use file::FileFormat;
pub use import::{ImportReport, load_official};
