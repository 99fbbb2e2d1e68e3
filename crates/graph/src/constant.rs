//! The constants of ops: their types, their text form and their ranges.

use std::fmt;

use girih_tensor::{Error, Result, reference};

/// The components of a head that a rotation with `P` pairs joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Component `i` with `i + P`.
    Halves,
    /// Component `2i` with `2i + 1`.
    Neighbours,
}

/// The positions that a row at position `p` attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Positions `0 ..= p`.
    Full,
    /// The same, though a mutual span contains the row: later positions are never seen.
    Past,
    /// The last `n` positions, including its own: `p − n + 1 ..= p`.
    Window(u32),
    /// The positions of its chunk of `n`, up to its own: `⌊p / n⌋ · n ..= p`.
    Chunk(u32),
    /// All positions of its sequence in this step, later ones too: encoders.
    All,
    /// Those of its mutual span, later ones too: encoders with windows. The spans cover all rows of the step.
    Mutual,
}

/// What the weights of experts multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weighed {
    /// The result of each expert.
    #[default]
    Results,
    /// The row before it enters each expert, as Llama 4 has it.
    Inputs,
}

/// Which heads of values share a head of keys, if there are fewer of these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HeadSharing {
    /// Neighbours: of `H` heads that share `G`, head `h` reads head `h / (H / G)`.
    #[default]
    Neighbours,
    /// They take turns: head `h` reads head `h % G`, as llama.cpp stores Qwen3.5.
    Turns,
}

impl HeadSharing {
    /// The head of `groups` that head `head` of `heads` reads.
    pub fn group(self, head: usize, heads: usize, groups: usize) -> usize {
        match self {
            HeadSharing::Neighbours => head / (heads / groups),
            HeadSharing::Turns => head % groups,
        }
    }
}

/// How the rows of a sequence become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The first row.
    First,
    /// The last row.
    Last,
    /// The mean of all rows.
    Mean,
}

/// An activation function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// `x / (1 + e⁻ˣ)`.
    Silu,
    /// `x/2 · (1 + tanh(√(2/π) · (x + 0.044715·x³)))`: the tanh form of GELU
    /// (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    GeluTanh,
    /// `x/2 · (1 + erf(x / √2))`: GELU itself (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    Gelu,
    /// `x / (1 + e^(−1.702·x))`: the sigmoid form of GELU (Hendrycks & Gimpel 2016, arXiv 1606.08415).
    QuickGelu,
    /// `1 / (1 + e⁻ˣ)`.
    Sigmoid,
    /// `ln(1 + eˣ)`.
    Softplus,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al. 2021, arXiv 2109.08668).
    Relu2,
    /// `x`: a gate of this activation is a product.
    Identity,
}

impl Act {
    /// Every activation.
    pub const ALL: &'static [Act] = &[
        Act::Silu,
        Act::GeluTanh,
        Act::Gelu,
        Act::QuickGelu,
        Act::Sigmoid,
        Act::Softplus,
        Act::Relu,
        Act::Relu2,
        Act::Identity,
    ];

    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            Act::Silu => "silu",
            Act::GeluTanh => "gelu_tanh",
            Act::Gelu => "gelu",
            Act::QuickGelu => "quick_gelu",
            Act::Sigmoid => "sigmoid",
            Act::Softplus => "softplus",
            Act::Relu => "relu",
            Act::Relu2 => "relu2",
            Act::Identity => "identity",
        }
    }

    /// The activation of a number.
    pub fn of(self, x: f64) -> f64 {
        match self {
            Act::Silu => x / (1.0 + (-x).exp()),
            Act::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Act::Gelu => 0.5 * x * (1.0 + reference::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
            Act::QuickGelu => x / (1.0 + (-1.702 * x).exp()),
            Act::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Act::Softplus => relu(x) + (-x.abs()).exp().ln_1p(),
            Act::Relu => relu(x),
            Act::Relu2 => relu(x) * relu(x),
            Act::Identity => x,
        }
    }
}

/// What the scores of a router become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// The softmax over all experts. Shares of the chosen ones' sum are the softmax over these.
    Softmax,
    /// The sigmoid of each.
    Sigmoid,
}

/// Groups of experts of which a row uses some, those whose best experts have the largest sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// The number of groups, which have equal sizes.
    pub count: u32,
    /// The number of groups that a row uses.
    pub used: u32,
    /// The number of best experts of a group that are added up: two in DeepSeek-V3, one in V2.
    pub best: u32,
}

impl RouterScore {
    /// Every score.
    pub const ALL: &'static [RouterScore] = &[RouterScore::Softmax, RouterScore::Sigmoid];

    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            RouterScore::Softmax => "softmax",
            RouterScore::Sigmoid => "sigmoid",
        }
    }
}

/// `max(x, 0)`; NaN stays NaN.
fn relu(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// The bound of a gate, and of the absolute value of what it gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GateLimit {
    /// `act(min(gate, limit))`, as gpt-oss has it.
    Gate(f32),
    /// `min(act(gate), limit)`, as Step 3.7 has it.
    Activated(f32),
}

impl GateLimit {
    /// The bound.
    pub fn bound(self) -> f32 {
        match self {
            GateLimit::Gate(bound) | GateLimit::Activated(bound) => bound,
        }
    }
}

/// How a gate and the value that it gates become one: `act(gate) · (clamp(up, −limit, limit) + offset)`, with
/// the bound of a [`GateLimit`] on the gate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GateRule {
    /// The activation of the gate.
    pub act: Act,
    /// The bound of both operands; without one, they are used as they are.
    pub limit: Option<GateLimit>,
    /// What is added to the gated value; absent as 0.
    pub offset: Option<f32>,
}

impl From<Act> for GateRule {
    /// `act(gate) · up`.
    fn from(act: Act) -> GateRule {
        GateRule { act, limit: None, offset: None }
    }
}

impl GateRule {
    /// The product.
    pub(crate) fn of(self, gate: f64, up: f64) -> f64 {
        let GateRule { act, limit, offset } = self;
        // Comparisons let NaN pass.
        let at_most = |x: f64, limit: f64| if x > limit { limit } else { x };
        let gate = match limit {
            None => act.of(gate),
            Some(GateLimit::Gate(limit)) => act.of(at_most(gate, f64::from(limit))),
            Some(GateLimit::Activated(limit)) => at_most(act.of(gate), f64::from(limit)),
        };
        let up = match limit.map(|limit| f64::from(limit.bound())) {
            None => up,
            Some(limit) => -at_most(-at_most(up, limit), limit),
        };
        gate * offset.map_or(up, |offset| up + f64::from(offset))
    }
}

/// The parameters of xIELU (Huang & Schlag 2024, arXiv 2411.13010): `positive · x² + beta · x` for `x > 0`,
/// else `(e^min(x, epsilon) − 1 − x) · negative + beta · x`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the formula has them
pub struct Xielu {
    pub positive: f32,
    pub negative: f32,
    pub beta: f32,
    pub epsilon: f32,
}

impl Xielu {
    /// The activation of a number.
    pub(crate) fn of(self, x: f64) -> f64 {
        let [positive, negative, beta, epsilon] =
            [self.positive, self.negative, self.beta, self.epsilon].map(f64::from);
        let curve = match x > 0.0 {
            true => positive * x * x,
            false => (x.min(epsilon).exp_m1() - x) * negative,
        };
        curve + beta * x
    }
}

impl Pooling {
    /// Every pooling.
    pub const ALL: &'static [Pooling] = &[Pooling::First, Pooling::Last, Pooling::Mean];

    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::First => "first",
            Pooling::Last => "last",
            Pooling::Mean => "mean",
        }
    }
}

impl Pairing {
    /// Every pairing.
    pub const ALL: &'static [Pairing] = &[Pairing::Halves, Pairing::Neighbours];

    /// The name in printed graphs and architecture files.
    pub fn name(self) -> &'static str {
        match self {
            Pairing::Halves => "halves",
            Pairing::Neighbours => "neighbours",
        }
    }
}

impl Span {
    /// Whether rows attend to rows of their step, and not to state.
    pub fn is_of_step(self) -> bool {
        match self {
            Span::All | Span::Mutual => true,
            Span::Full | Span::Past | Span::Window(_) | Span::Chunk(_) => false,
        }
    }

    /// The first position that a row at `position` attends to, if a mutual span does not begin before it.
    pub fn first(self, position: usize) -> usize {
        match self {
            Span::Full | Span::Past | Span::All => 0,
            Span::Mutual => position,
            Span::Window(length) => (position + 1).saturating_sub(length as usize),
            // The checker refuses chunks of 0.
            Span::Chunk(length) => position - position % (length as usize).max(1),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Span::Full => f.write_str("full"),
            Span::Past => f.write_str("past"),
            Span::All => f.write_str("all"),
            Span::Mutual => f.write_str("mutual"),
            Span::Window(length) => write!(f, "window:{length}"),
            Span::Chunk(length) => write!(f, "chunk:{length}"),
        }
    }
}

/// A constant of an op in the text form, `name=text`.
pub(crate) trait Constant: Sized {
    /// Returns the text; `None` for an optional constant that is absent.
    fn print(&self) -> Option<String>;

    /// Parses what [`print`](Constant::print) returns.
    ///
    /// # Errors
    /// When the text is not one of this type.
    fn parse(text: &str) -> Result<Self>;

    /// Returns the value that stands for an absent constant, if the type is optional.
    fn absent() -> Option<Self> {
        None
    }
}

impl Constant for f32 {
    fn print(&self) -> Option<String> {
        Some(format!("{self:?}"))
    }

    fn parse(text: &str) -> Result<f32> {
        text.parse().map_err(|_| Error::new(format!("'{text}' is not a number")))
    }
}

impl Constant for Option<f32> {
    fn print(&self) -> Option<String> {
        self.as_ref().and_then(f32::print)
    }

    fn parse(text: &str) -> Result<Option<f32>> {
        f32::parse(text).map(Some)
    }

    fn absent() -> Option<Option<f32>> {
        Some(None)
    }
}

impl Constant for u32 {
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Result<u32> {
        text.parse().map_err(|_| Error::new(format!("'{text}' is not a count")))
    }
}

impl Constant for RouterScore {
    fn print(&self) -> Option<String> {
        Some(self.name().to_owned())
    }

    fn parse(text: &str) -> Result<RouterScore> {
        find_by_name(text, RouterScore::ALL, RouterScore::name)
    }
}

impl Constant for Option<ExpertGroups> {
    fn print(&self) -> Option<String> {
        self.map(|ExpertGroups { count, used, best }| match best {
            2 => format!("{used}of{count}"),
            best => format!("{used}of{count}by{best}"),
        })
    }

    fn parse(text: &str) -> Result<Option<ExpertGroups>> {
        let groups = text.split_once("of").and_then(|(used, count)| {
            let (count, best) = count.split_once("by").unwrap_or((count, "2"));
            Some(ExpertGroups {
                count: count.parse().ok()?,
                used: used.parse().ok()?,
                best: best.parse().ok()?,
            })
        });
        let wrong = || {
            Error::new(format!("'{text}' are no groups: use '<used>of<count>' or '<used>of<count>by<best>'"))
        };
        groups.map(Some).ok_or_else(wrong)
    }

    fn absent() -> Option<Option<ExpertGroups>> {
        Some(None)
    }
}

impl Constant for Option<GateLimit> {
    fn print(&self) -> Option<String> {
        match self {
            None => None,
            Some(GateLimit::Gate(bound)) => bound.print(),
            Some(GateLimit::Activated(bound)) => Some(format!("activated:{bound:?}")),
        }
    }

    fn parse(text: &str) -> Result<Option<GateLimit>> {
        let limit = match text.strip_prefix("activated:") {
            None => text.parse().map(GateLimit::Gate),
            Some(bound) => bound.parse().map(GateLimit::Activated),
        };
        let wrong =
            |_| Error::new(format!("'{text}' is no limit of a gate: use a number or 'activated:<number>'"));
        limit.map(Some).map_err(wrong)
    }

    fn absent() -> Option<Option<GateLimit>> {
        Some(None)
    }
}

impl Constant for Span {
    fn print(&self) -> Option<String> {
        Some(self.to_string())
    }

    fn parse(text: &str) -> Result<Span> {
        let span = match text {
            "full" => Some(Span::Full),
            "past" => Some(Span::Past),
            "all" => Some(Span::All),
            "mutual" => Some(Span::Mutual),
            _ => text.split_once(':').and_then(|(kind, length)| {
                let length = length.parse().ok()?;
                match kind {
                    "window" => Some(Span::Window(length)),
                    "chunk" => Some(Span::Chunk(length)),
                    _ => None,
                }
            }),
        };
        let form = "'full', 'past', 'all', 'mutual', 'window:<positions>' or 'chunk:<positions>'";
        span.ok_or_else(|| Error::new(format!("'{text}' is not a span: use {form}")))
    }
}

impl Constant for Act {
    fn print(&self) -> Option<String> {
        Some(self.name().to_owned())
    }

    fn parse(text: &str) -> Result<Act> {
        find_by_name(text, Act::ALL, Act::name)
    }
}

impl Constant for Pairing {
    fn print(&self) -> Option<String> {
        Some(self.name().to_owned())
    }

    fn parse(text: &str) -> Result<Pairing> {
        find_by_name(text, Pairing::ALL, Pairing::name)
    }
}

impl Constant for Weighed {
    fn print(&self) -> Option<String> {
        match self {
            Weighed::Results => None,
            Weighed::Inputs => Some("inputs".to_owned()),
        }
    }

    fn parse(text: &str) -> Result<Weighed> {
        match text {
            "inputs" => Ok(Weighed::Inputs),
            _ => Err(Error::new(format!(
                "'{text}' is not what weights multiply: use 'inputs', or leave it out"
            ))),
        }
    }

    fn absent() -> Option<Weighed> {
        Some(Weighed::Results)
    }
}

impl Constant for HeadSharing {
    fn print(&self) -> Option<String> {
        match self {
            HeadSharing::Neighbours => None,
            HeadSharing::Turns => Some("turns".to_owned()),
        }
    }

    fn parse(text: &str) -> Result<HeadSharing> {
        match text {
            "turns" => Ok(HeadSharing::Turns),
            _ => {
                Err(Error::new(format!("'{text}' is not how heads share keys: use 'turns', or leave it out")))
            }
        }
    }

    fn absent() -> Option<HeadSharing> {
        Some(HeadSharing::Neighbours)
    }
}

impl Constant for Pooling {
    fn print(&self) -> Option<String> {
        Some(self.name().to_owned())
    }

    fn parse(text: &str) -> Result<Pooling> {
        find_by_name(text, Pooling::ALL, Pooling::name)
    }
}

/// The one of `choices` that is printed as `text`.
fn find_by_name<T: Copy>(text: &str, choices: &[T], name: fn(T) -> &'static str) -> Result<T> {
    let found = choices.iter().copied().find(|choice| name(*choice) == text);
    found.ok_or_else(|| Error::new(format!("'{text}' is not among the known choices")))
}

/// The constants of a printed op that are not parsed yet.
pub(crate) struct ConstantList<'a> {
    op: &'a str,
    pairs: Vec<(&'a str, &'a str)>,
}

impl<'a> ConstantList<'a> {
    pub fn new(op: &'a str, text: &'a str) -> Result<ConstantList<'a>> {
        let pairs: Option<Vec<_>> = text.split_whitespace().map(|pair| pair.split_once('=')).collect();
        let pairs =
            pairs.ok_or_else(|| Error::new(format!("'{text}' is not a list of constants 'name=value'")))?;
        Ok(ConstantList { op, pairs })
    }

    /// Parses the constant of this name and removes it from the list.
    pub fn parse<T: Constant>(&mut self, name: &str) -> Result<T> {
        match self.pairs.iter().position(|(found, _)| *found == name) {
            Some(index) => T::parse(self.pairs.remove(index).1),
            None => T::absent().ok_or_else(|| Error::new(format!("{} needs '{name}='", self.op))),
        }
    }

    /// Refuses constants that the op does not have.
    pub fn end(self) -> Result<()> {
        let ConstantList { op, pairs } = self;
        pairs.first().map_or(Ok(()), |(name, _)| {
            Err(Error::new(format!("{op} has no constant '{name}', or has it twice")))
        })
    }
}

// The ranges that the op table allows for constants.

pub(crate) fn any<T>(_: &T) -> bool {
    true
}

pub(crate) fn finite(x: &f32) -> bool {
    x.is_finite()
}

pub(crate) fn not_negative(x: &f32) -> bool {
    x.is_finite() && *x >= 0.0
}

pub(crate) fn positive(x: &f32) -> bool {
    x.is_finite() && *x > 0.0
}

pub(crate) fn not_negative_if_present(x: &Option<f32>) -> bool {
    x.as_ref().is_none_or(not_negative)
}

pub(crate) fn not_zero(count: &u32) -> bool {
    *count != 0
}

pub(crate) fn power_of_two(count: &u32) -> bool {
    count.is_power_of_two()
}

pub(crate) fn finite_if_present(x: &Option<f32>) -> bool {
    x.as_ref().is_none_or(finite)
}

pub(crate) fn positive_if_present(x: &Option<f32>) -> bool {
    x.as_ref().is_none_or(positive)
}

pub(crate) fn positive_bound_if_present(limit: &Option<GateLimit>) -> bool {
    limit.is_none_or(|limit| positive(&limit.bound()))
}

pub(crate) fn not_empty(span: &Span) -> bool {
    !matches!(span, Span::Window(0) | Span::Chunk(0))
}
