use girih_npu::{Target, sim::Simulator};
use girih_npu_lab::published::*;
fn main() {
    let t = std::time::Instant::now();
    let mut all = vec![];
    for name in std::env::args().skip(1) {
        if let Some(part) = name.strip_prefix("only=") {
            let v = validate(&built_in_tables(), part, &|n| Simulator::new(&Target::named(n)?), &mut |p| {
                eprint!("{}/{} {:.0}s\r", p.done, p.total, t.elapsed().as_secs_f64())
            })
            .unwrap();
            println!("{v}");
            continue;
        }
        let f = KernelFamily::ALL.into_iter().find(|f| f.name() == name);
        let one = leave_out(&built_in_tables(), f, &mut |a, b| {
            eprint!("{name} {a}/{b} {:.0}s\n", t.elapsed().as_secs_f64())
        })
        .unwrap();
        print!("{one}");
        all.push(one);
    }
    print!("{}", LeftOutTable(&all));
    eprintln!("{:.1}s", t.elapsed().as_secs_f64());
}
