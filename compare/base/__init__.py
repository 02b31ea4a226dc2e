"""What parent, child and backends share: the interface, workloads, knobs, messages and files."""
