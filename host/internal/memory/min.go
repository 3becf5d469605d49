package memory

// min is a builtin only from Go 1.21 on, and Debian 12 has 1.19.
func min[T int | int64](a, b T) T {
	if a < b {
		return a
	}
	return b
}
