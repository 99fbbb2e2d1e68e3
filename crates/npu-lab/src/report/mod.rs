//! Reports what a compiled model does on an array: time, use of tiles, channels
//! and DRAM, rooflines, the bottleneck of each launch, and an estimate of
//! energy. All of it is counted from what the simulator reports.
//!
//! | part | file |
//! |---|---|
//! | the model and its steps | `model`, `step` |
//! | the report in one sentence | `verdict` |
//! | the step's spans in order of time | `spans` |
//! | activity of cores and channels | `count` |
//! | limits of the array, and bottlenecks | `limits` |
//! | the energy estimate | `energy` |
//! | figures with their sources | `figures` |
//! | a trace for Perfetto | `trace` |
//! | comparison with published times | `compare` |
//! | text, and one page of HTML | `text`, `page`, with numbers by `quantity` |

mod compare;
mod count;
mod figures;
mod limits;
mod model;
mod page;
mod quantity;
mod spans;
mod step;
mod text;
mod trace;
mod verdict;

pub use crate::energy::EnergyEstimate;
pub use compare::{PublishedComparison, PublishedHostWork, PublishedPass, PublishedProgram};
pub use figures::{SourcedFigure, grades};
pub use limits::{ArrayLimits, BusyShares, LaunchBottleneck};
pub use model::ModelReport;
pub use page::page;
pub use spans::{StepSpan, StepSpanKind};
pub use step::{ChannelUse, EntryUse, LaunchUse, ProgramUse, StepReport, TileUse};
pub use trace::{Trace, TraceInfo, TracedStep};
