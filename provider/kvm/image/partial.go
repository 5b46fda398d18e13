package image

import (
	"context"
	"time"
)

// cleanupTime bounds the removal of a partial file, which happens after the
// context of its upload has ended.
const cleanupTime = 30 * time.Second

// remove deletes a partial file. One that stays is never used; it is removed
// by the next upload of the same image or by Prune.
func (c *Cache) remove(ctx context.Context, target Target, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	if err := target.Delete(ctx, name); err != nil {
		c.options.Logger.Warn("could not remove a partial image", "target", target.String(), "volume", name, "error", err)
	}
}

// writing marks a volume as this process's own work until the function that it
// returns is called.
func (c *Cache) writing(name baseName) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.active[name.String()] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.active, name.String())
	}
}

// removeOwn removes what an earlier life of ours left half written.
func (c *Cache) removeOwn(ctx context.Context, target Target, id string) {
	volumes, err := target.List(ctx, Prefix+id)
	if err != nil {
		return // the upload will meet the same trouble and tell it
	}
	complete := map[string]bool{}
	for _, v := range volumes {
		if m, ok := parseMarker(v.Name); ok {
			complete[m.base.String()] = true
		}
	}
	for _, v := range volumes {
		name, ok := parseBase(v.Name)
		c.mu.Lock()
		mine := ok && name.owner == c.owner && !c.active[v.Name] && !complete[v.Name]
		c.mu.Unlock()
		if !mine {
			continue
		}
		if err := target.Delete(ctx, v.Name); err != nil {
			c.options.Logger.Warn("could not remove a partial image", "target", target.String(), "volume", v.Name, "error", err)
		}
	}
}
