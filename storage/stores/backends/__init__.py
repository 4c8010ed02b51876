"""Store backends; `open_store` chooses one."""
