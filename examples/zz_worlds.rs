use phalanx::schedule::fabric::{Fabric, Question, choice, forecast, preset};
use phalanx::types::Collective;
use phalanx::{Algorithm, DataType};
fn main() {
    let only: Option<String> = std::env::args().nth(1);
    let ranks: Vec<usize> =
        std::env::var("RANKS").unwrap_or("1024,4096,16384".into()).split(',').map(|x| x.parse().unwrap()).collect();
    let sizes: Vec<usize> = std::env::var("SIZES")
        .unwrap_or("65536,1048576,67108864".into())
        .split(',')
        .map(|x| x.parse().unwrap())
        .collect();
    let algs = vec![
        Algorithm::Ring,
        Algorithm::DoubleTree,
        Algorithm::Hierarchical,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
    ];
    let mut bad = 0;
    let mut all = 0;
    for name in ["ethernet-10g", "roce-100g", "clos-400g", "clos-400g-4to1"] {
        if only.as_deref().is_some_and(|o| o != name) {
            continue;
        }
        let fabric: Fabric = preset(name).unwrap();
        for &bytes in &sizes {
            for &ranks in &ranks {
                let q = |algorithm| Question {
                    collective: Collective::Allreduce,
                    algorithm,
                    ranks,
                    bytes,
                    dtype: DataType::F32,
                    fabric: &fabric,
                };
                let c = choice(&q(Algorithm::Ring), None);
                let mut algs = algs.clone();
                if ranks <= 256 {
                    algs.push(Algorithm::TwoShot);
                    algs.push(Algorithm::OneShot);
                }
                let mut cells = vec![];
                for a in algs {
                    let est = c.alternatives.iter().find(|(x, _)| *x == a).unwrap().1;
                    let real = forecast(&q(a), 100_000_000).map(|f| (f.seconds, f.busiest)).ok();
                    cells.push((a, est, real));
                }
                let best = cells
                    .iter()
                    .filter_map(|(a, _, r)| r.map(|r| (r.0, *a)))
                    .min_by(|x, y| x.0.total_cmp(&y.0))
                    .unwrap();
                let mine =
                    cells.iter().find(|(a, ..)| *a == c.algorithm).and_then(|(_, _, r)| *r).map_or(f64::NAN, |r| r.0);
                let loss = mine / best.0 - 1.0;
                all += 1;
                if !(loss <= 0.15) {
                    bad += 1;
                }
                println!(
                    "{name} {bytes} {ranks}: chosen {} best {} loss {:.0}%{}",
                    c.algorithm,
                    best.1,
                    loss * 100.0,
                    if loss <= 0.15 { "" } else { "  <<<" }
                );
                for (a, e, r) in cells {
                    if let Some((s, b)) = r {
                        println!(
                            "    {:<20} est {:>10.1} sim {:>10.1} ratio {:.2} {:?} {:.2} seg {}",
                            a.name(),
                            e.seconds * 1e6,
                            s * 1e6,
                            e.seconds / s,
                            b.0,
                            b.1,
                            e.segment
                        );
                    } else {
                        println!("    {:<20} est {:>10.1}", a.name(), e.seconds * 1e6);
                    }
                }
            }
        }
    }
    println!("{bad} of {all} bad");
}
