/** @throws an error for people when this user cannot run micro-VMs. */
export function assertRoot(): void {
  const uid = process.getuid?.();
  if (uid === 0) return;
  throw new Error(
    `a machine that runs sandboxes needs root, and this is uid ${uid}: it makes network namespaces, cgroups and ` +
      'chroots, in which micro-VMs then run without privileges. Start it with sudo; only the roles control and ' +
      'gateway do without.',
  );
}
