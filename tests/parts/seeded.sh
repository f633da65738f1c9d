# Known bugs, seeded one at a time into a copy of the sources: the tests must notice each.
step 'seeded: known bugs are caught' bash tests/seeded/check.sh
