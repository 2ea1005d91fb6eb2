"""Runs the methods on real devices, over MQTT; the Flower app is for users of `flwr run`."""
