// The numbers of BUFFER of an invocation, from number `i` of the run at `at` on; zeros beyond the end.
fn BUFFER_four(at: u32, i: u32) -> vec4<f32> {
    let end = p.width - 1u;
    let v = vec4<f32>(
        BUFFER[at + min(i, end)], BUFFER[at + min(i + 256u, end)],
        BUFFER[at + min(i + 512u, end)], BUFFER[at + min(i + 768u, end)]);
    return within(v, i);
}

fn BUFFER_run(at: u32, i: u32) -> Run {
    var run = NO_RUN;
    run.a = BUFFER_four(at, i);
    if p.width > 1024u {
        run.b = BUFFER_four(at, i + 1024u);
        run.c = BUFFER_four(at, i + 2048u);
        run.d = BUFFER_four(at, i + 3072u);
    }
    return run;
}

