# Elastic jobs of real processes: every fault at every point of the protocol, and ranks that come and go for a while. For
# longer runs: CHURN_SECONDS=1800 CHURN_SEED=7 bash tests/run.sh elastic
if step 'elastic: build' cargo test --locked --no-run --test faults; then
    step 'elastic: every point, kill, stop and reset' env PHALANX_TEST_FAULTS="${FAULTS:-shm}" \
        cargo test --locked --test faults matrix -- --nocapture --test-threads 1
    step 'elastic: processes that fall and come' env PHALANX_TEST_CHURN_SECONDS="${CHURN_SECONDS:-60}" \
        PHALANX_TEST_CHURN_SEED="${CHURN_SEED:-1}" \
        cargo test --locked --test faults churn -- --nocapture
    step 'elastic: registry and launcher' cargo test --locked --test faults -- \
        --skip matrix --skip churn --skip crowd
    step 'elastic: how soon a death is known' cargo test --locked --test faults crowd -- --nocapture --test-threads 1
    grep -hE '^(test .*\.\.\. )?(shm|tcp|64 ranks)[: ]' "$logs"/elastic--how-soon*.log | sed 's/^test .*\.\.\. //; s/^/    /'
fi
