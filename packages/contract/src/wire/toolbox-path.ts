/** URLs below a region's `toolbox_proxy_url`. Keep imports cheap: the CLI loads this file at every start. */

/** Base URL of the toolbox of one sandbox. `base` is the `toolbox_proxy_url` of its region. */
export function toolboxUrl(base: string, vmId: string): string {
  return `${base.replace(/\/+$/, '')}/${encodeURIComponent(vmId)}`;
}
