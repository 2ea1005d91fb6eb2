"""The fleet folder: settings, certificates and keys, one folder per device."""
