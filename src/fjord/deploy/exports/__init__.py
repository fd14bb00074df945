"""One submodel as one plain file for one device, checked before it is kept."""
