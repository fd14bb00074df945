"""What federated training costs, as ratios within one run."""
