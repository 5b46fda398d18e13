package driver

// abandon leaves an instance that could not be deleted to the collector.
func (d *Driver) abandon(s *settings, target record, err error) {
	d.logger.Warn("instance is not deleted yet, trying on in the background", "instance", target.Ref.String(), "error", err)
	target.Orphan = true
	if err := s.records.write(target); err != nil {
		d.logger.Error("no record of an instance that must be deleted", "instance", target.Ref.String(), "error", err)
	}
}

// begin starts what the driver does by itself, once.
func (d *Driver) begin() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.begun || d.closed || d.settings == nil {
		return
	}
	d.begun = true
}
