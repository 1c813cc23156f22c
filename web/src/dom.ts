// Making and changing elements. All text comes in as text, never as markup.

type Child = Node | string;

export function make<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  properties: Partial<Record<string, string>> = {},
  ...children: Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) if (value !== undefined) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

export function shape(tag: string, properties: Record<string, string | number>): SVGElement {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(properties)) element.setAttribute(name, String(value));
  return element;
}

/** Set the text of an element, if it is another one: unchanged text costs no layout. */
export function tell(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text;
}

/** Rows of a table that are kept while their keys stay, so that the browser changes only what has changed. */
export class Rows {
  private readonly rows = new Map<string, HTMLTableCellElement[]>();

  constructor(
    private readonly body: HTMLTableSectionElement,
    private readonly width: number,
  ) {}

  cells(key: string): HTMLTableCellElement[] {
    const known = this.rows.get(key);
    if (known) return known;
    const head = make("th", { scope: "row" }, key);
    const cells = [head, ...Array.from({ length: this.width - 1 }, () => make("td"))];
    this.body.append(make("tr", {}, ...cells));
    this.rows.set(key, cells);
    return cells;
  }
}

export function table(caption: string, heads: string[]): [HTMLElement, Rows] {
  const body = make("tbody");
  const head = make("thead", {}, make("tr", {}, ...heads.map((name) => make("th", { scope: "col" }, name))));
  const whole = make("table", {}, make("caption", {}, caption), head, body);
  return [make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, whole), new Rows(body, heads.length)];
}
