//! Why parameters of several APIs change nothing.

/// Of parameters that steer a prompt cache.
pub const CACHE: &str = "the prefix cache finds shared prefixes itself";

/// Of parameters that place a model on the machine.
pub const AT_START: &str = "it is decided when the server starts";

/// Of the size of the context.
pub const CONTEXT: &str = "--context sets it; a request that does not fit is refused";

/// Of parameters that say what stays of a prompt that is cut.
pub const NEVER_CUT: &str = "no prompt is cut";
