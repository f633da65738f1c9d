use phalanx::schedule::Hosts;
use phalanx::schedule::cost::*;
use phalanx::{Algorithm, types::Collective};
use serde_json::Value;
#[derive(Clone)]
struct Cell {
    name: String,
    coll: Collective,
    bytes: usize,
    hosts: Hosts,
    tcp: bool,
    share: f64,
    ways: Vec<(Algorithm, f64)>,
    chosen: String,
    weight: f64,
}
fn model(p: &[f64], c: &Cell) -> CostModel {
    let mut host = if c.tcp { HostModel::SOCKETS } else { HostModel::SHARED_MEMORY };
    let mut m = CostModel::within(!c.tcp);
    host.processors = c.hosts.most() as f64 / c.share.max(1.0);
    if c.tcp {
        m.in_host = LinkModel { latency: p[0], overhead: p[1], seconds_per_byte: p[2] };
        host.turn = p[3];
        host.switch = p[4];
        host.idling = p[5];
        host.one_way = p[6];
        host.operation = p[7];
    }
    if c.tcp {
        m.reduce_seconds_per_byte = p[8];
    }
    host.far_switch = p[9];
    host.far_turn = p[10];
    m.between_hosts = LinkModel { latency: p[11], overhead: p[12], seconds_per_byte: p[13] };
    m.host = Some(host);
    m
}
fn score(p: &[f64], cells: &[Cell], show: bool) -> f64 {
    let mut total = 0.0;
    let (mut bad, mut errs) = (0, vec![]);
    let mut ls = vec![];
    for c in cells {
        let m = model(p, c);
        let est: Vec<(Algorithm, f64, f64)> = c
            .ways
            .iter()
            .map(|(a, t)| {
                let e = estimate(c.coll, *a, (c.bytes / 4, 4), &c.hosts, false, &m).seconds * 1e6;
                (*a, e, *t)
            })
            .collect();
        let sensible = |a: Algorithm| {
            !(a == Algorithm::OneShot && c.coll == Collective::Allreduce && c.bytes > 1 << 20)
                && !(a == Algorithm::Hierarchical && (c.hosts.count() == 1 || c.hosts.most() == 1))
        };
        let best = est.iter().filter(|x| sensible(x.0)).map(|x| x.2).fold(f64::MAX, f64::min);
        let pick = est.iter().filter(|x| sensible(x.0)).min_by(|a, b| a.1.total_cmp(&b.1)).unwrap();
        let loss = pick.2 / best - 1.0;
        ls.push(loss);
        let err: f64 = est.iter().map(|x| (x.1 / x.2).ln().abs()).sum::<f64>() / est.len() as f64;
        errs.extend(est.iter().map(|x| (x.1 / x.2).max(x.2 / x.1)));
        total +=
            c.weight * ((loss - 0.05).max(0.0).min(1.5) * 3.0 + (loss - 0.13).max(0.0).min(1.0) * 3.0 + err * 0.25);
        if loss > 0.15 {
            bad += 1;
            if show {
                let mut e = est.clone();
                e.sort_by(|a, b| a.2.total_cmp(&b.2));
                println!(
                    "{:8} {} {} pick {} loss {:.0}% (was {}) {}",
                    c.name,
                    c.coll,
                    c.bytes,
                    pick.0,
                    loss * 100.0,
                    c.chosen,
                    e.iter().map(|x| format!("{} {:.0}({:.0})", x.0, x.2, x.1)).collect::<Vec<_>>().join(" ")
                );
            }
        }
    }
    if show {
        errs.sort_by(f64::total_cmp);
        ls.sort_by(f64::total_cmp);
        println!(
            "{} cells, {bad} bad; err median {:.2} worst {:.2}; loss median {:.0}% worst {:.0}%",
            cells.len(),
            errs[errs.len() / 2],
            errs[errs.len() - 1],
            ls[ls.len() / 2] * 100.0,
            ls[ls.len() - 1] * 100.0
        );
    }
    total
}
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let which: Vec<usize> = args[0].split(',').filter(|s| !s.is_empty()).map(|x| x.parse().unwrap()).collect();
    let mut p: Vec<f64> =
        std::env::var("P").ok().map(|s| s.split(',').map(|x| x.parse().unwrap()).collect()).unwrap_or(vec![
            1.5e-6,
            2.5e-6,
            1.0 / 2e9,
            5e-6,
            3.5e-6,
            0.6,
            0.65,
            0.5e-6,
            1.0 / 12e9,
            40e-6,
            10e-6,
            25e-6,
            4e-6,
            0.8e-9,
            1.0,
        ]);
    let mut cells = vec![];
    let mut merged: std::collections::BTreeMap<(String, String, usize), Vec<Value>> = Default::default();
    for f in &args[1..] {
        let name = std::path::Path::new(f).file_stem().unwrap().to_str().unwrap().to_string();
        for l in std::fs::read_to_string(f).unwrap().lines() {
            let v: Value = serde_json::from_str(l).unwrap();
            merged
                .entry((name.clone(), v["collective"].as_str().unwrap().into(), v["bytes"].as_u64().unwrap() as usize))
                .or_default()
                .push(v);
        }
    }
    for ((name, coll, bytes), vs) in merged {
        let n = vs[0]["ranks"].as_u64().unwrap() as usize;
        let h = match &*name {
            "hosts4" => (0..4).collect(),
            "hosts2x2" => vec![0, 0, 1, 1],
            _ => vec![0; n],
        };
        let ways = vs[0]["ways"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|w| w["algorithm"] != "boards")
            .map(|w| {
                let a = w["algorithm"].as_str().unwrap();
                let mut ts: Vec<f64> = vs
                    .iter()
                    .map(|v| {
                        v["ways"].as_array().unwrap().iter().find(|w| w["algorithm"] == a).unwrap()["measured_us"]
                            .as_f64()
                            .unwrap()
                    })
                    .collect();
                ts.sort_by(f64::total_cmp);
                (
                    a.parse().unwrap(),
                    if ts.len() % 2 == 1 { ts[ts.len() / 2] } else { (ts[ts.len() / 2] * ts[ts.len() / 2 - 1]).sqrt() },
                )
            })
            .collect();
        cells.push(Cell {
            tcp: name.starts_with("tcp"),
            share: (n as f64 / 2.0).max(1.0),
            hosts: Hosts::new(&h, n),
            name,
            coll: coll.parse().unwrap(),
            bytes,
            ways,
            chosen: vs[0]["chosen"].as_str().unwrap().into(),
            weight: 1.0,
        });
    }
    println!("before:");
    score(&p, &cells, true);
    let mut best = score(&p, &cells, false);
    let mut seed = 12345u64;
    let mut rnd = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 11) as f64 / (1u64 << 53) as f64
    };
    for i in 0..if which.is_empty() { 0 } else { 6000 } {
        let mut q = p.clone();
        let scale = if i % 3 == 0 { 1.2 } else { 0.25 };
        for _ in 0..1 + (rnd() * 2.0) as usize {
            let k = which[(rnd() * which.len() as f64) as usize];
            q[k] *= (scale * (2.0 * rnd() - 1.0)).exp();
            if k == 6 {
                q[k] = q[k].clamp(0.3, 1.0)
            }
        }
        let s = score(&q, &cells, false);
        if s < best {
            best = s;
            p = q;
        }
    }
    println!("after:");
    score(&p, &cells, true);
    println!("P={}", p.iter().map(|x| format!("{x:.4e}")).collect::<Vec<_>>().join(","));
}
