"""Environments made of what other frameworks have: `verl.verl_tools` and `skyrl_gym.skyrl_gym_environment`. Nothing of
those frameworks is imported before it is used."""
