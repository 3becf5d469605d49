/** Addresses below a region's `toolbox_proxy_url`. No import here may cost anything: the command line loads this file. */

/** `base` is a region's `toolbox_proxy_url`; `tail` is what stands after the sandbox, as in `process/execute`. */
export function toolboxUrl(base: string, vmId: string, tail: string): string {
  return `${base.replace(/\/+$/, '')}/${encodeURIComponent(vmId)}/${tail.replace(/^\/+/, '')}`;
}
