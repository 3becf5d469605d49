/** Addresses below a region's `toolbox_proxy_url`. No import here may cost anything: the command line loads this file. */

/** Base URL of the toolbox of one sandbox. `base` is the `toolbox_proxy_url` of its region. */
export function toolboxUrl(base: string, vmId: string): string {
  return `${base.replace(/\/+$/, '')}/${encodeURIComponent(vmId)}`;
}
