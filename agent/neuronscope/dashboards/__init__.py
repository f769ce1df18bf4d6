"""Dashboards, rules and alerts, generated from the signal registry."""
