/** Gives up root for good. Memory of a process that has done so is in no core dump, and no other process may read it. */
export function dropPrivileges(id: number): void {
  process.setgroups?.([]);
  process.setgid?.(id);
  process.setuid?.(id);
  if (process.getuid?.() !== id) throw new Error(`cannot become user ${id}`);
}
