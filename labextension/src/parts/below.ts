/** What opens below a toolbar's item; the status bar's own popup opens above. */

import { Panel, Widget } from '@lumino/widgets';

/** Open until there is a click elsewhere, or whoever opened it ends it. */
export class Below extends Panel {
  constructor(body: Widget, anchor: Widget) {
    super();
    this._anchor = anchor;
    this.addClass('jgpu-Below');
    this.addWidget(body);
    Widget.attach(this, document.body);
    const { bottom, right } = anchor.node.getBoundingClientRect();
    this.node.style.top = `${bottom}px`;
    this.node.style.right = `${Math.max(0, window.innerWidth - right)}px`;
    this.node.style.maxHeight = `${window.innerHeight - bottom}px`;
    document.addEventListener('pointerdown', this._onPointer, true);
    anchor.disposed.connect(this.dispose, this);
  }

  override dispose(): void {
    document.removeEventListener('pointerdown', this._onPointer, true);
    super.dispose();
  }

  private _onPointer = (event: PointerEvent): void => {
    const target = event.target as Node;
    if (!this.node.contains(target) && !this._anchor.node.contains(target)) {
      this.dispose();
    }
  };

  private _anchor: Widget;
}
