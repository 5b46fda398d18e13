// Package layout holds the test of the import directions.
package layout
