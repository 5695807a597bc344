"""The audit: compares a method with plain decoding by token, and explains every difference."""
