"""The mathematics that all other packages use: functions of arrays and tensors."""
