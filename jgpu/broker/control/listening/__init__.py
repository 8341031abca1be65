"""Who connects, by which door, and how many they may be."""
