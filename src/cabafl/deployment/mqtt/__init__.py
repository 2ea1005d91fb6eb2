"""MQTT 5 as the network between server and devices."""
