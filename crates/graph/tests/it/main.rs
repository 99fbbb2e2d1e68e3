//! Tests of graphs through the public interface: rules, text form, plans, results, loading.

mod attention;
mod check;
mod conformance;
mod delta_rule;
mod forms;
mod interpret;
mod operators;
mod picks;
mod plan;
mod random;
mod routed_experts;
mod runner;
mod session;
mod short_conv;
mod sink_gather;
mod split;
mod ssm_scan;
mod stages;
mod state;
mod table;
mod text;
mod work;
